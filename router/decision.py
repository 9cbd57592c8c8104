"""The decision record: for each tier what an answer would take, what it is good enough for, and why it was not taken.

It is the last step of a trace, and what `GET /api/decisions/{id}`, `power-lever plan` and the agents' tools show. No
text of the prompt is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import isfinite
from typing import Any, Literal

from pydantic import Field

from router.dials import POWER_OF_DIFFICULTY
from router.difficulty.categories import Category
from router.difficulty.classify import Classification
from router.needs import Obstacle, Service
from router.observation import Observation
from router.prediction import UPPER_Z, Estimate
from router.registry import TIER_NAMES, Frozen, Profile, TierName
from router.request import Goal, InferenceRequest, Mode
from router.selection import Predict, Selection, Violation, broken_limits, given_limits
from router.words import breaks, number

By = Literal["router", "user", "agent"]


class Expected(Frozen):
    """A predicted value with its range. Null: infinite, as times are where the tier cannot start."""

    expected: float | None = Field(description="Expected value.")
    low: float | None = Field(description="One in ten answers is predicted to stay under this.")
    high: float | None = Field(description="Nine in ten answers are predicted to stay under this.")


class TierVerdict(Frozen):
    """One tier, as a decision saw it."""

    tier: TierName = Field(description="The tier.")
    gpu: str | None = Field(description="Its accelerator type; null: CPU.")
    entry: str = Field(description="The chain entry that serves, or would be tried first.")
    target_model: str = Field(description="Model that would answer.")
    context: int = Field(description="Its context, tokens: prompt and answer together.")
    warm: bool = Field(description="Whether a replica can take a request at once.")
    taken: bool = Field(description="Whether this tier was chosen.")
    why_not: str | None = Field(description="Why it was not; null: it was.")
    can_serve: bool = Field(description="Whether it can start, and holds the prompt with its answer.")
    good_enough: bool = Field(description="Whether it is good enough for this prompt.")
    good_for: str = Field(description="For which prompts it was judged good enough.")
    ttft_ms: Expected = Field(description="Time to first token, waiting included, ms.")
    total_ms: Expected = Field(description="Time to the last token, ms.")
    cost_usd: Expected = Field(description="Cost of the answer, USD.")
    energy_wh: Expected = Field(description="Energy of the answer, Wh.")
    co2_g: Expected = Field(description="CO2 of the answer, g.")
    completion_tokens: Expected = Field(description="Length of the answer, tokens.")
    past_runs: float = Field(description="Effective number of past runs behind the prediction; 0: the registry's.")


class Decision(Frozen):
    """Which tier was chosen, by what, and what each other one would have taken."""

    mode: Mode = Field(description="`auto` or `manual`.")
    by: By = Field(description="Who chose the tier: the router, the user by the power dial, or an agent.")
    tier: TierName = Field(description="The chosen tier.")
    power: int = Field(ge=0, le=100, description="Power dial that picks it.")
    deserved_tier: TierName = Field(description="Tier by difficulty alone.")
    wanted_tier: TierName = Field(description="Tier before limits and before what can serve.")
    category: Category = Field(description="Category of the prompt.")
    difficulty: int = Field(ge=1, le=10, description="1 (a greeting) to 10 (a research problem).")
    goal: Goal | None = Field(description="What matters most to the user.")
    limits: tuple[str, ...] = Field(description="What the user allows.")
    prompt_tokens_least: int = Field(description="Tokens of the whole prompt, at least, by estimate.")
    prompt_tokens_most: int = Field(description="The same, at most: tiers are judged by it.")
    tiers: tuple[TierVerdict, ...] = Field(description="All tiers, in order of power.")

    def verdict(self, tier: TierName) -> TierVerdict:
        """Return the verdict on one tier."""
        return self.tiers[TIER_NAMES.index(tier)]


def decide(
    request: InferenceRequest,
    classification: Classification,
    selection: Selection,
    serving: Service,
    observation: Observation,
    profile: Profile,
    predict: Predict,
    by: By | None = None,
) -> dict[str, Any]:
    """Return the record of a selection: the fields of a `Decision`, which would take ten times as long to make.

    Args:
        request: from the client.
        classification: of its prompt.
        selection: the tier that was chosen, and how.
        serving: which tiers can serve.
        observation: the state of the tiers.
        profile: the tiers.
        predict: returns what the answer will take on a tier.
        by: who chose; None: the router, or in manual mode the user.
    """
    limits = given_limits(request.constraints)
    good_for = _good_for(tuple((name, *tier.power) for name, tier in profile.tiers.items()))
    made = {candidate.tier: candidate.prediction for candidate in selection.candidates}
    deserved = TIER_NAMES.index(selection.deserved)

    def verdict(place: int, name: TierName) -> dict[str, Any]:
        tier, state = profile.tiers[name], observation.tier(name)
        entry = tier.entry(state.active_entry)
        prediction = made.get(name) or predict(name)
        obstacle = serving.obstacles.get(name)
        why_not = None
        if name != selection.tier:
            broken = broken_limits(limits, prediction) if limits else ()
            why_not = _why_not(name, request, selection, obstacle, broken, by)
        return {
            "tier": name,
            "gpu": tier.gpu,
            "entry": entry.name,
            "target_model": entry.target,
            "context": entry.max_model_len,
            "warm": state.warm,
            "taken": name == selection.tier,
            "why_not": why_not,
            "can_serve": obstacle is None,
            "good_enough": place >= deserved,
            "good_for": good_for[name],
            "ttft_ms": _range(prediction.ttft_ms, 1),
            "total_ms": _range(prediction.total_ms, 1),
            "cost_usd": _range(prediction.cost_usd, 9),
            "energy_wh": _range(prediction.energy_wh, 7),
            "co2_g": _range(prediction.co2_g, 7),
            "completion_tokens": _range(prediction.completion_tokens, 1),
            "past_runs": round(prediction.runs, 2),
        }

    return {
        "mode": request.mode,
        "by": by or ("user" if request.mode == "manual" else "router"),
        "tier": selection.tier,
        "power": selection.power,
        "deserved_tier": selection.deserved,
        "wanted_tier": selection.wanted,
        "category": classification.category,
        "difficulty": classification.difficulty,
        "goal": request.goal,
        "limits": tuple(f"{limit} {number(allowed)}" for limit, allowed in limits),
        "prompt_tokens_least": serving.prompt.least,
        "prompt_tokens_most": serving.prompt.most,
        "tiers": tuple(verdict(place, name) for place, name in enumerate(TIER_NAMES)),
    }


def _range(estimate: Estimate, digits: int) -> dict[str, float | None]:
    """Return an estimate as an `Expected`, with so many digits after the point."""
    expected, deviation = estimate
    spread = UPPER_Z * deviation
    if not isfinite(expected + spread):
        return {"expected": None, "low": None, "high": None}
    low = expected - spread
    return {
        "expected": round(expected, digits),
        "low": round(low, digits) if low > 0 else 0.0,
        "high": round(expected + spread, digits),
    }


@cache
def _good_for(powers: tuple[tuple[TierName, int, int], ...]) -> Mapping[TierName, str]:
    """Return for which difficulties each tier is good enough, in words.

    Args:
        powers: each tier, its lowest and its highest power, in order of power.
    """
    words, hardest = dict[TierName, str](), 0
    for name, low, high in powers:
        hardest = max((d for d, power in POWER_OF_DIFFICULTY.items() if low <= power <= high), default=hardest)
        words[name] = f"difficulty up to {hardest}" if hardest else "no prompt"
    return words


def _why_not(
    name: TierName,
    request: InferenceRequest,
    selection: Selection,
    obstacle: Obstacle | None,
    broken: tuple[Violation, ...],
    by: By | None,
) -> str:
    if request.mode == "manual":
        return "the user's power setting picks another tier"
    if obstacle is not None:
        return obstacle.reason
    if broken:
        return breaks(name, broken)
    place, wanted, chosen = (TIER_NAMES.index(tier) for tier in (name, selection.wanted, selection.tier))
    if by == "agent":
        return "the agent chose another tier"
    if request.goal == "faster" and place >= wanted:
        return f"not predicted to be clearly faster than {selection.tier}"
    if place < TIER_NAMES.index(selection.deserved):
        return f"weaker than the {selection.deserved} tier, which the prompt deserves"
    if chosen < TIER_NAMES.index(selection.deserved) and request.goal in ("cheaper", "greener"):
        return f"the goal {request.goal} prefers {selection.tier}"
    if place > chosen:
        return f"stronger than needed: {selection.tier} is good enough" if chosen >= wanted else "farther away"
    return f"farther from the {selection.wanted} tier, which was wanted"
