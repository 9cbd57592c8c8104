"""Which tier a prompt gets: what its difficulty deserves, shifted by a goal, within the user's limits.

**The wanted tier.** In auto mode the difficulty's own, which a goal shades:

    cheaper, greener   counted as two points easier. A safety-critical prompt keeps its tier: no goal under-serves it.
    better             counted as two points harder
    faster             of the tiers from the wanted one upwards, the weakest whose predicted total time is within a
                       tenth of the fastest's

Two points are at most one tier, and none where the difficulty is at the tier's other end.

**The limits.** Of the tiers that keep all of them, the nearest to the wanted one; of two as near, the stronger. If none
does, the one whose worst violation is least; of equals, again the nearest. Limits are the user's explicit word: they
win over difficulty and goal, also for a safety-critical prompt.

In manual mode the tier is the user's: limits are only checked, and a goal is refused with the request.

So a harder prompt never gets a lower tier, all else equal; and where some tier keeps a limit, the plan for a tighter
one does not break it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from router.constraints import GivenLimits, Violation, broken_limits, given_limits
from router.dials import DEFAULT_POWER, power_for_difficulty, tier_for_power
from router.difficulty.classify import Classification
from router.prediction import Prediction
from router.registry import TIER_NAMES, Profile, TierName
from router.request import Goal, InferenceRequest

GOAL_POINTS: dict[Goal, int] = {"faster": 0, "cheaper": -2, "greener": -2, "better": 2}
"""By how many points of difficulty (1-10) a goal shifts the wanted tier."""
FAST_ENOUGH = 1.1
"""`faster` takes no stronger tier for less than this factor in predicted time."""

Predict = Callable[[TierName], Prediction]


class Candidate(NamedTuple):
    """A tier, and how it does."""

    tier: TierName
    prediction: Prediction
    broken: tuple[Violation, ...]
    """Limits that it will probably break, the worst first."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The tier for a request, and how it came about."""

    deserved: TierName
    """By difficulty alone."""
    wanted: TierName
    """With the goal, or as the power dial says; before the limits."""
    tier: TierName
    power: int
    """Power (0-100) in the tier's range; the nearest to what was wanted."""
    counted_difficulty: int
    """The difficulty (1-10) that the goal makes of the prompt's own."""
    candidates: tuple[Candidate, ...] = ()
    """The tiers of which a prediction was needed."""

    @property
    def chosen(self) -> Candidate | None:
        """How the tier does; None where neither limits nor goal asked for a prediction."""
        return next((candidate for candidate in self.candidates if candidate.tier == self.tier), None)

    @property
    def broken(self) -> tuple[Violation, ...]:
        """Limits that give way, the worst first."""
        return self.chosen.broken if self.chosen else ()


def select(request: InferenceRequest, classification: Classification, profile: Profile, predict: Predict) -> Selection:
    """The tier for a request; `predict` is called only where limits or a goal need it."""
    deserved = tier_for_power(profile, power_for_difficulty(classification.difficulty))
    limits = given_limits(request.constraints)
    if request.mode == "manual":
        power = DEFAULT_POWER if request.power is None else request.power
        tier = tier_for_power(profile, power)
        checked = (_judged(tier, limits, predict),) if limits else ()
        return Selection(deserved, tier, tier, power, classification.difficulty, checked)

    counted = _counted_difficulty(classification, request.goal)
    power = power_for_difficulty(counted)
    wanted = tier_for_power(profile, power)
    if not limits and request.goal != "faster":
        return Selection(deserved, wanted, wanted, power, counted)
    tier, candidates = _nearest(wanted, limits, request.goal, predict)
    low, high = profile.tiers[tier].power
    return Selection(deserved, wanted, tier, min(max(power, low), high), counted, candidates)


def _counted_difficulty(classification: Classification, goal: Goal | None) -> int:
    points = 0 if goal is None else GOAL_POINTS[goal]
    if points < 0 and classification.category == "safety_critical":
        points = 0
    return min(10, max(1, classification.difficulty + points))


def _nearest(
    wanted: TierName, limits: GivenLimits, goal: Goal | None, predict: Predict
) -> tuple[TierName, tuple[Candidate, ...]]:
    """The tier, and all that were looked at."""
    if goal != "faster":
        first = _judged(wanted, limits, predict)
        if not first.broken:
            return wanted, (first,)  # nothing is nearer
    candidates = tuple(_judged(name, limits, predict) for name in TIER_NAMES)
    keeping = [candidate for candidate in candidates if not candidate.broken]
    if goal == "faster" and (fastest := _fastest(wanted, keeping)):
        return fastest, candidates
    if keeping:
        return min(keeping, key=lambda candidate: _apart(candidate.tier, wanted)).tier, candidates
    least = min(candidates, key=lambda candidate: (candidate.broken[0].ratio, _apart(candidate.tier, wanted)))
    return least.tier, candidates


def _judged(tier: TierName, limits: GivenLimits, predict: Predict) -> Candidate:
    prediction = predict(tier)
    return Candidate(tier, prediction, broken_limits(limits, prediction))


def _apart(tier: TierName, wanted: TierName) -> tuple[int, int]:
    """Sorts by how far a tier is from the wanted one; of two as far, the stronger first."""
    steps = TIER_NAMES.index(tier) - TIER_NAMES.index(wanted)
    return abs(steps), -steps


def _fastest(wanted: TierName, keeping: list[Candidate]) -> TierName | None:
    """Of those that are good enough; None where none is."""
    good_enough = [candidate for candidate in keeping if TIER_NAMES.index(candidate.tier) >= TIER_NAMES.index(wanted)]
    if not good_enough:
        return None
    most_ms = FAST_ENOUGH * min(candidate.prediction.total_ms.expected for candidate in good_enough)
    return next(c.tier for c in good_enough if c.prediction.total_ms.expected <= most_ms)
