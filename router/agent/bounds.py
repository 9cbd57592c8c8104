"""What an agent may change in a deterministic plan.

A choice is taken only if all of this holds. Otherwise the whole deterministic plan stands.

- The mode is auto. In manual mode the dials are the user's.
- The tier is the deterministic one or a neighbour of it, and a neighbour only where the classifier is in doubt: where a
  prompt one point harder or easier would get that tier. So no wording of a prompt gains more than one point of
  difficulty.
- If the conversation speaks to the router ("use ultra", "ignore your tools"), tier and speed stay.
- A safety-critical prompt never gets a lower tier.
- The tier can serve the request: it holds the prompt, and can start, unless the deterministic one cannot either.
- What the user set (speed, k, tau) stays. The speed moves by at most `MOST_SPEED_SHIFT`, and k is at most the
  entry's k_max.
- No limit of the user is broken that the deterministic plan keeps, by the same predictions. A goal is no limit: it says
  which choice the user prefers, and the agent's choice takes its place.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Final

from router.agent.result import AgentChoice
from router.dials import power_for_difficulty, tier_for_power
from router.difficulty.rules import load_rules
from router.observation import Observation
from router.plan import Plan, forecast
from router.prediction import Prediction
from router.registry import TIER_NAMES, Profile, TierName
from router.request import InferenceRequest
from router.selection import Violation, broken_limits, given_limits

DIFFICULTY_DOUBT: Final = 1
"""Points of difficulty by which the classifier may be wrong."""
MOST_SPEED_SHIFT: Final = 25
"""Points of the speed dial by which an agent may turn it."""
_WORD: Final = re.compile(r"[a-z0-9]+")
_INVISIBLE: Final = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")


@dataclass(frozen=True, slots=True)
class Case:
    """A request and its deterministic plan, with the registry and the observation behind the plan."""

    request: InferenceRequest
    plan: Plan
    profile: Profile
    observation: Observation


def predicted(case: Case, tier: TierName, speed: int) -> Prediction:
    """Return what the answer will take on that tier, at that speed."""
    request = case.request.model_copy(update={"speed": speed})
    return forecast(request, tier, case.plan.classification.category, case.observation, case.profile)


def broken(case: Case, tier: TierName, speed: int) -> tuple[Violation, ...]:
    """Return the user's limits that will probably be broken there, the worst first."""
    limits = given_limits(case.request.constraints)
    return broken_limits(limits, predicted(case, tier, speed)) if limits else ()


def time_left_s(case: Case) -> float:
    """Return how long an agent may take without breaking a time limit that the deterministic plan keeps, s.

    It is infinite if the user set no time limit, or only limits that are broken anyway.
    """
    limits = given_limits(case.request.constraints)
    if not limits:
        return inf
    made = predicted(case, case.plan.tier, case.plan.speed)
    left_ms = [
        allowed - estimate.upper
        for limit, allowed in limits
        for name, estimate in (("max_ttft_ms", made.ttft_ms), ("max_total_ms", made.total_ms))
        if limit == name and estimate.upper <= allowed
    ]
    return min(left_ms, default=inf) / 1000


def refusal(choice: AgentChoice, case: Case) -> str | None:
    """Return why the choice is not taken, in words; None: it is within bounds."""
    return next((reason for rule in _RULES for reason in rule(choice, case)), None)


def open_tiers(case: Case) -> tuple[TierName, ...]:
    """Return the tiers that an agent may choose, in order of power; the deterministic one is always among them."""
    here = case.plan.tier
    if case.plan.mode == "manual" or _directives(case):
        return (here,)
    classification = case.plan.classification
    doubted = {
        tier_for_power(case.profile, power_for_difficulty(min(max(classification.difficulty + shift, 1), 10)))
        for shift in (-DIFFICULTY_DOUBT, 0, DIFFICULTY_DOUBT)
    }
    index = TIER_NAMES.index(here)
    lowest = index if classification.category == "safety_critical" else index - 1
    return tuple(
        name
        for place, name in enumerate(TIER_NAMES)
        if name == here or (lowest <= place <= index + 1 and name in doubted and _can_serve(name, case))
    )


def speaks_to_router(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the words and phrases of a conversation that speak to or about the router, in alphabetical order.

    The deterministic router ignores such words; a model may obey them. The list is wide on purpose: a prompt that only
    mentions GPUs loses nothing but an agent's second opinion. It has English words only. The other bounds hold in any
    language.
    """
    rules = load_rules()
    found: set[str] = set()
    for text in texts:
        words = _WORD.findall(_folded(text))
        pairs = set(pairwise(words))
        for terms in (rules.about_the_router, rules.router_directives):
            found |= terms.words.intersection(words)
            found |= {phrase for phrase, needed in terms.phrase_pairs if needed <= pairs}
    return tuple(sorted(found))


def _folded(text: str) -> str:
    """Return a text in lower case, without accents and invisible marks, with full-width letters as plain ones."""
    plain = unicodedata.normalize("NFKD", _INVISIBLE.sub("", text)).lower()
    return "".join(char for char in plain if not unicodedata.combining(char))


def _directives(case: Case) -> tuple[str, ...]:
    return speaks_to_router(message.content for message in case.request.chat())


def _can_serve(name: TierName, case: Case) -> bool:
    obstacle = case.plan.serving.obstacles.get(name)
    if obstacle is not None and obstacle.kind != "failed":
        return False
    return not case.observation.tier(name).failed or case.observation.tier(case.plan.tier).failed


def _mode(choice: AgentChoice, case: Case) -> Iterator[str]:
    if case.plan.mode == "manual":
        yield "in manual mode the dials are the user's"


def _tier(choice: AgentChoice, case: Case) -> Iterator[str]:
    allowed = open_tiers(case)
    if choice.tier not in allowed:
        why = f"tier {choice.tier} is out of bounds, allowed: {', '.join(allowed)}"
        found = _directives(case)
        yield f"{why}: the prompt speaks to the router ({', '.join(found[:3])})" if found else why


def _speed(choice: AgentChoice, case: Case) -> Iterator[str]:
    if choice.speed is None or choice.speed == case.plan.speed:
        return
    if case.request.speed is not None:
        yield f"speed {choice.speed}: the user set {case.request.speed}"
    elif abs(choice.speed - case.plan.speed) > MOST_SPEED_SHIFT:
        yield f"speed {choice.speed} is more than {MOST_SPEED_SHIFT} from {case.plan.speed}"
    elif found := _directives(case):
        yield f"speed {choice.speed}: the prompt speaks to the router ({', '.join(found[:3])})"


def _speculation(choice: AgentChoice, case: Case) -> Iterator[str]:
    requested = case.request.spec
    entry = case.profile.entry(choice.tier, case.observation.tier(choice.tier).active_entry)
    k_max = entry.speculation.k_max if entry.speculation else 0
    if requested is not None and requested.k is not None and choice.k not in (None, requested.k):
        yield f"k {choice.k}: the user set {requested.k}"
    if requested is not None and requested.tau is not None and choice.tau not in (None, requested.tau):
        yield f"tau {choice.tau:g}: the user set {requested.tau}"
    if requested is not None and not requested.enabled and choice.k not in (None, 0):
        yield f"k {choice.k}: the user turned drafts off"
    if isinstance(choice.k, int) and choice.k > k_max:
        yield f"k {choice.k} is more than entry {entry.name} of tier {choice.tier} can do ({k_max})"


def _limits(choice: AgentChoice, case: Case) -> Iterator[str]:
    broken_before = {violation.limit for violation in broken(case, case.plan.tier, case.plan.speed)}
    for violation in broken(case, choice.tier, case.plan.speed if choice.speed is None else choice.speed):
        if violation.limit not in broken_before:
            upper = violation.predicted.upper
            yield f"{violation.limit} {violation.allowed:g}: it may be {upper:.3g}, and the router's plan keeps it"


_RULES: Final[tuple[Callable[[AgentChoice, Case], Iterator[str]], ...]] = (
    _mode,
    _tier,
    _speed,
    _speculation,
    _limits,
)
