"""The trace: what each step of planning decided, as one model a step, with the functions that make them.

The `trace` events and the agent's tools of the same names use these models. Every value is JSON, so a step's result, a
tool's answer to Claude and an answer to an MCP client are the same mapping.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, NamedTuple

from pydantic import Field

from router.dials import Sampling
from router.difficulty.categories import Category
from router.difficulty.classify import Classification
from router.needs import Obstacle, ObstacleKind
from router.observation import Observation
from router.registry import TIER_NAMES, ChainEntry, DraftsChoice, Frozen, SpeculationMethod, Tau, Tier, TierName
from router.request import Goal, InferenceRequest, Limit
from router.runs.summary import RunSummary
from router.selection import Candidate, GivenLimits, Selection, given_limits
from router.spec_params import SpecParams, WhoDrafts
from router.words import breaks, number

Clock = Callable[[], float]
"""Returns seconds since any fixed moment."""
TraceValue = Any
"""A JSON value; tuples for lists."""


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step of planning, for a `trace` event."""

    step: str
    result: Mapping[str, TraceValue]
    """JSON values; do not change it."""
    duration_ms: float


class Stopwatch:
    """Collects trace steps, each with the time since the step before."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock()
        self.steps: list[TraceStep] = []

    def lap(self, step: str, result: Mapping[str, TraceValue]) -> None:
        """Add a step that has just ended."""
        now = self._clock()
        self.steps.append(TraceStep(step, result, (now - self._last) * 1000))
        self._last = now


class ClassifiedPrompt(Frozen):
    """The category and the difficulty of a prompt."""

    category: Category = Field(description="Category of the prompt.")
    difficulty: int = Field(ge=1, le=10, description="1 to 10: where the score stands among the shares of the tiers.")
    score: float = Field(
        description="Share of the reference mix (0-1) that is expected to gain less from a stronger model."
    )
    reasons: tuple[str, ...] = Field(description="Why, strongest kind first; with words of the rules only.")


class GoalShift(Frozen):
    """What a goal did to the choice of the tier."""

    goal: Goal = Field(description="The goal.")
    deserved_tier: TierName = Field(description="Tier by difficulty alone.")
    counted_difficulty: int = Field(ge=1, le=10, description="The prompt's difficulty after the goal's shift.")
    tier: TierName = Field(description="Tier for the goal: for `faster` within the limits, otherwise before them.")
    reason: str = Field(description="In words.")


class MovedTier(Frozen):
    """Another tier answers than the wanted one, which cannot serve the request."""

    wanted_tier: TierName = Field(description="Tier by difficulty and goal.")
    tier: TierName = Field(description="Tier that was chosen of those that can serve.")
    obstacle: ObstacleKind = Field(description="What is wrong with the wanted tier.")
    reason: str = Field(description="In words.")


class CheckedConstraints(Frozen):
    """Which of the user's limits will be kept. Null: infinite, because the tier cannot start, or no value."""

    limits: tuple[str, ...] = Field(description="What the user allows.")
    wanted_tier: TierName = Field(description="Tier without the limits.")
    tier: TierName = Field(description="Tier that was chosen.")
    kept: bool = Field(description="Whether that tier will probably keep all limits.")
    gives_way: Limit | None = Field(description="The limit that it breaks most; null: none.")
    allowed: float | None = Field(description="What that limit allows, in the unit of its name.")
    predicted: float | None = Field(description="The expected value.")
    predicted_upper: float | None = Field(description="The upper estimate, which is compared with the limit.")
    broken: tuple[Limit, ...] = Field(description="All limits that it will probably break, the worst first.")
    others: tuple[str, ...] = Field(description="What the other tiers would break, if they were considered.")
    ttft_ms: float | None = Field(description="Expected time to first token on the chosen tier, ms.")
    total_ms: float | None = Field(description="Expected time to the last token, ms.")
    cost_usd: float = Field(description="Expected cost, USD.")
    energy_wh: float = Field(description="Expected energy, Wh.")
    past_runs: float = Field(description="Effective number of the tier's past runs behind the prediction.")
    reason: str = Field(description="In words.")


class Escalation(Frozen):
    """Advice to use another tier than the selected one: of the plan, or in the middle of an answer."""

    from_tier: TierName = Field(description="Selected tier.")
    to_tier: TierName = Field(description="The advised tier: of the plan, the one by difficulty alone.")
    reason: str = Field(description="In words.")
    applied: bool = Field(description="Whether the advice is followed.")
    at_token: int | None = Field(default=None, description="Tokens of the answer before it; null: it is the plan's.")


class PastDrafts(Frozen):
    """Why nothing is drafted, by past runs."""

    draft_tokens: float = Field(description="Recent draft tokens of the tier and category; older ones count less.")
    acceptance_rate: float = Field(description="Share of them that was accepted (0-1).")
    reason: str = Field(description="In words.")


class TierPool(Frozen):
    """The live state of one tier."""

    tier: TierName = Field(description="The tier.")
    gpu: str | None = Field(description="Its accelerator type; null: CPU.")
    running: int = Field(description="Replicas that serve.")
    starting: int = Field(description="Replicas that load their model.")
    pending: int = Field(description="Replicas that wait for a node.")
    warm: bool = Field(description="Whether a replica can take a request at once.")
    cold_start_s: float = Field(description="Expected time from no replica to the first token, s; 0 when warm.")
    queue_wait_ms: float = Field(description="Arrival to first scheduling in the engine, lately, ms.")
    reason: str | None = Field(description="Why the tier is not fully up; null: no reason is known.")


class BuiltConfig(Frozen):
    """The settings with which a request runs on a tier."""

    power: int = Field(ge=0, le=100, description="Power dial that picks the tier.")
    speed: int = Field(ge=0, le=100, description="Speed dial.")
    tier: TierName = Field(description="The tier.")
    entry: str = Field(description="The tier's chain entry that serves, or would be tried first.")
    target_model: str = Field(description="Model that answers.")
    max_tokens: int = Field(ge=1, description="Most completion tokens.")
    temperature: float = Field(description="Sampling temperature.")
    top_p: float = Field(description="Nucleus sampling mass.")
    spec_method: SpeculationMethod | None = Field(description="How drafts are made; null: no speculation.")
    spec_k: int = Field(ge=0, description="Most draft tokens per step; 0: none.")
    spec_k_mode: Literal["auto", "fixed"] = Field(description="`auto`: the controller decides up to `spec_k`.")
    spec_tau: Tau = Field(description="Acceptance rate below which drafting stops; `auto`: where drafts do not pay.")
    spec_drafts: DraftsChoice | None = Field(description="Who drafts; `auto`: the controller decides; null: nobody.")


class RecentRuns(Frozen):
    """Recent requests on a tier. Null: not measured."""

    tier: TierName = Field(description="The tier.")
    category: Category | None = Field(description="Category of the prompts; null: all together.")
    runs: float = Field(description="Effective number of recent runs; older ones count less.")
    ttft_ms: float | None = Field(description="Time to first token, waiting included, mean, ms.")
    ttft_deviation_ms: float | None = Field(description="Its standard deviation between runs, ms.")
    engine_ttft_ms: float | None = Field(description="Time to first token without the waiting, mean, ms.")
    total_ms: float | None = Field(description="Time to last token, mean, ms.")
    tokens_per_s: float | None = Field(description="Completion tokens per second on the engine, mean.")
    completion_tokens: float | None = Field(description="Length of an answer, mean, tokens.")
    acceptance_rate: float | None = Field(description="Accepted of the verified draft tokens (0-1).")
    energy_wh: float | None = Field(description="Energy of an answer, mean, Wh.")
    cost_usd: float | None = Field(description="Cost of an answer, mean, USD.")


def classified(classification: Classification, *, quoting: bool = True) -> ClassifiedPrompt:
    """Return the step of a classification.

    Args:
        classification: of a prompt.
        quoting: whether the reasons have the words of the rules that are in the prompt. The prompt's author may see
            them; the agent's API may not, beyond the text that it is sent.
    """
    return ClassifiedPrompt(
        category=classification.category,
        difficulty=classification.difficulty,
        score=round(classification.score, 2),
        reasons=classification.reasons if quoting else classification.rules,
    )


def tier_pool(name: TierName, tier: Tier, observation: Observation) -> TierPool:
    """Return the step of a tier's state. The cold start is the observed one, or the registry's before the first."""
    state, seen = observation.tier(name), name in observation.tiers
    return TierPool(
        tier=name,
        gpu=tier.gpu,
        running=state.running,
        starting=state.starting,
        pending=state.pending,
        warm=state.warm,
        cold_start_s=0.0 if state.warm else state.cold_start_s if seen else tier.cold_start_s,
        queue_wait_ms=state.queue_wait_ms,
        reason=state.reason,
    )


class EngineSettings(NamedTuple):
    """How the engine answers a request with one chain entry."""

    sampling: Sampling
    spec: SpecParams
    """Resolved."""
    drafts: WhoDrafts
    no_drafts_reason: str | None
    """Why nothing is drafted; None: something is."""
    wasteful: bool
    """Whether past runs show that drafts are waste."""


def built_config(power: int, speed: int, tier: TierName, entry: ChainEntry, settings: EngineSettings) -> BuiltConfig:
    """Return the step of the decided settings."""
    sampling, spec = settings.sampling, settings.spec
    return BuiltConfig(
        power=power,
        speed=speed,
        tier=tier,
        entry=entry.name,
        target_model=entry.target,
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        spec_method=spec_method(entry, spec),
        spec_k=spec.most_drafts(entry.speculation),
        spec_k_mode=spec.k_mode,
        spec_tau=spec.tau or 0.0,
        spec_drafts=settings.drafts.used,
    )


def spec_method(entry: ChainEntry, spec: SpecParams) -> SpeculationMethod | None:
    """Return how drafts are made; None: there are none."""
    return entry.speculation.method if entry.speculation and spec.enabled else None


def past_drafts(past: RunSummary) -> PastDrafts:
    """Return the step of past runs that show that drafts are waste."""
    rate = past.accepted_tokens / past.draft_tokens
    return PastDrafts(
        draft_tokens=past.draft_tokens,
        acceptance_rate=rate,
        reason=f"{rate:.1%} of the recent drafts for such prompts were accepted on this tier, so none are made",
    )


def goal_shift(goal: Goal, selection: Selection) -> GoalShift:
    """Return the step of a goal."""
    return GoalShift(
        goal=goal,
        deserved_tier=selection.deserved,
        counted_difficulty=selection.counted_difficulty,
        tier=selection.tier if goal == "faster" else selection.wanted,
        reason=_goal_words(goal, selection),
    )


def moved_tier(selection: Selection, obstacles: Mapping[TierName, Obstacle]) -> MovedTier | None:
    """Return the step of a wanted tier that cannot serve the request; None: it can, or it was chosen all the same."""
    wanted, tier = selection.wanted, selection.tier
    if wanted == tier or wanted not in obstacles:
        return None
    kind, why = obstacles[wanted]
    return MovedTier(
        wanted_tier=wanted, tier=tier, obstacle=kind, reason=f"tier {wanted} cannot serve this ({why}), so {tier} does"
    )


def checked_constraints(request: InferenceRequest, selection: Selection) -> CheckedConstraints | None:
    """Return the step of the limits; None: there are none."""
    limits, chosen = given_limits(request.constraints), selection.chosen
    if not limits or chosen is None:
        return None
    worst = chosen.broken[0] if chosen.broken else None
    prediction = chosen.prediction
    return CheckedConstraints(
        limits=tuple(f"{limit} {number(allowed)}" for limit, allowed in limits),
        wanted_tier=selection.wanted,
        tier=selection.tier,
        kept=worst is None,
        gives_way=worst.limit if worst else None,
        allowed=worst.allowed if worst else None,
        predicted=_finite(worst.predicted.expected) if worst else None,
        predicted_upper=_finite(worst.predicted.upper) if worst else None,
        broken=tuple(violation.limit for violation in chosen.broken),
        others=tuple(
            breaks(other.tier, other.broken) for other in selection.candidates if other is not chosen and other.broken
        ),
        ttft_ms=_finite(prediction.ttft_ms.expected),
        total_ms=_finite(prediction.total_ms.expected),
        cost_usd=prediction.cost_usd.expected,
        energy_wh=prediction.energy_wh.expected,
        past_runs=prediction.runs,
        reason=_limit_words(request, limits, selection, chosen),
    )


def _goal_words(goal: Goal, selection: Selection) -> str:
    requested, wanted = f"you want it {goal}", selection.wanted
    if goal == "faster":
        if TIER_NAMES.index(selection.tier) > TIER_NAMES.index(wanted):
            return f"{requested}, and the {selection.tier} tier is predicted to answer sooner than weaker ones"
        return f"{requested}, but no stronger tier is predicted to be clearly faster than {selection.tier}"
    if wanted == selection.deserved:
        return f"{requested}, but this prompt needs the {wanted} tier"
    return f"{requested}, so it counts as difficulty {selection.counted_difficulty}, which gets the {wanted} tier"


def _limit_words(request: InferenceRequest, limits: GivenLimits, selection: Selection, chosen: Candidate) -> str:
    all_limits = "your limit" if len(limits) == 1 else "all your limits"
    if not chosen.broken:
        keeps = f"the {selection.tier} tier is predicted to keep {all_limits}"
        wanted = next((c for c in selection.candidates if c.tier == selection.wanted), chosen)
        return f"{keeps}; {breaks(wanted.tier, wanted.broken)}" if wanted.broken else keeps
    gives_way = breaks(chosen.tier, chosen.broken)
    if request.mode == "manual":
        return f"{gives_way}; in manual mode your power setting is kept"
    return f"no tier is predicted to keep {all_limits}; the {selection.tier} tier comes nearest, but {gives_way}"


def _finite(value: float) -> float | None:
    """Return None for infinity, which JSON does not have."""
    return value if isfinite(value) else None
