"""Select the tier of a prompt: by its difficulty, shifted by a goal, within the user's limits.

**The wanted tier.** In auto mode it is the tier of the difficulty, which a goal may shift:

    cheaper, greener   The prompt counts as two points easier. A safety-critical prompt keeps its tier.
    better             The prompt counts as two points harder.
    faster             Of the tiers from the wanted one upwards, the weakest whose predicted total time is within a
                       tenth of the fastest tier's.

Two points shift by one tier at most, and by none if the difficulty is at the other end of its tier's range.

**The limits.** Of the tiers that keep all limits, the nearest to the wanted one answers; of two as near, the stronger.
If no tier keeps them, the one with the smallest worst violation answers; of equals, again the nearest. Limits are the
user's explicit word, so they win over difficulty and goal, also for a safety-critical prompt.

**The tiers that can serve.** In auto mode only these are considered (`router/needs.py`). The nearest of them to the
wanted one answers, of two as near the stronger. A safety-critical prompt takes the nearest upwards, and a weaker one
only if no stronger can serve.

In manual mode the tier is the user's. Limits are only checked, and the request is refused if it has a goal.

So a harder prompt never gets a lower tier, all else equal; and if some tier keeps a limit, the plan for a tighter limit
does not break it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from router.dials import DEFAULT_POWER, power_for_difficulty, tier_for_power
from router.difficulty.classify import Classification
from router.prediction import Estimate, Prediction
from router.registry import TIER_NAMES, Profile, TierName
from router.request import LIMITS, Constraints, Goal, InferenceRequest, Limit

GOAL_POINTS: dict[Goal, int] = {"faster": 0, "cheaper": -2, "greener": -2, "better": 2}
"""By how many points of difficulty (1-10) a goal shifts the wanted tier."""
FAST_ENOUGH = 1.1
"""`faster` takes a stronger tier only if the weaker one's predicted time is more than this factor longer."""

Predict = Callable[[TierName], Prediction]


GivenLimits = tuple[tuple[Limit, float], ...]
"""The limits of a request, each with the value that it allows."""


class Violation(NamedTuple):
    """A limit that will probably be broken."""

    limit: Limit
    allowed: float
    predicted: Estimate
    """Its `upper` is above `allowed`."""

    @property
    def ratio(self) -> float:
        """The upper estimate as a multiple of the allowed value: over 1."""
        return self.predicted.upper / self.allowed


def given_limits(constraints: Constraints | None) -> GivenLimits:
    """Return the limits that a request sets."""
    if constraints is None:
        return ()
    return tuple((limit, value) for limit in LIMITS if (value := getattr(constraints, limit)) is not None)


def broken_limits(limits: GivenLimits, prediction: Prediction) -> tuple[Violation, ...]:
    """Return the limits that the prediction breaks, the worst first.

    A limit counts as kept if even the upper estimate is within it: it is meant as a promise, not as an average.
    """
    broken = [
        Violation(limit, allowed, predicted)
        for limit, allowed in limits
        if (predicted := getattr(prediction, limit.removeprefix("max_"))).upper > allowed
    ]
    broken.sort(key=lambda violation: violation.ratio, reverse=True)
    return tuple(broken)


class Candidate(NamedTuple):
    """A tier, what is predicted on it, and the limits that it breaks."""

    tier: TierName
    prediction: Prediction
    broken: tuple[Violation, ...]
    """The worst first."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The tier for a request, and how it was selected."""

    deserved: TierName
    """The tier by difficulty alone."""
    wanted: TierName
    """The tier with the goal, or by the power dial; before the limits."""
    tier: TierName
    power: int
    """Power (0-100) in the tier's range, as near as possible to that of the wanted tier."""
    counted_difficulty: int
    """The prompt's difficulty (1-10) after the goal's shift."""
    candidates: tuple[Candidate, ...] = ()
    """The tiers for which a prediction was needed."""

    @property
    def chosen(self) -> Candidate | None:
        """The selected tier as a candidate; None if neither limits nor goal needed a prediction."""
        return next((candidate for candidate in self.candidates if candidate.tier == self.tier), None)

    @property
    def broken(self) -> tuple[Violation, ...]:
        """Limits that the selected tier breaks, the worst first."""
        return self.chosen.broken if self.chosen else ()


def select(
    request: InferenceRequest,
    classification: Classification,
    profile: Profile,
    predict: Predict,
    able: Sequence[TierName] = TIER_NAMES,
) -> Selection:
    """Select the tier for a request; `predict` is called only if limits or a goal need it.

    Args:
        request: from the client.
        classification: of its prompt.
        profile: the tiers.
        predict: returns what the answer will take on a tier.
        able: the tiers to choose among in auto mode, in order of power; at least one.
    """
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
    upwards = classification.category == "safety_critical"
    if not limits and request.goal != "faster":
        tier, candidates = nearest(wanted, able, upwards=upwards), tuple[Candidate, ...]()
    else:
        tier, candidates = _within_limits(wanted, limits, request.goal, predict, able, upwards=upwards)
    low, high = profile.tiers[tier].power
    return Selection(deserved, wanted, tier, min(max(power, low), high), counted, candidates)


def nearest(wanted: TierName, among: Sequence[TierName], *, upwards: bool = False) -> TierName:
    """Return the nearest of these tiers in power, of two the stronger one.

    Args:
        wanted: the tier that would be best.
        among: at least one.
        upwards: whether each that is at least as strong as the wanted one is nearer than each that is weaker.
    """
    return min(among, key=lambda name: _apart(name, wanted, upwards))


def _counted_difficulty(classification: Classification, goal: Goal | None) -> int:
    points = 0 if goal is None else GOAL_POINTS[goal]
    if points < 0 and classification.category == "safety_critical":
        points = 0
    return min(10, max(1, classification.difficulty + points))


def _within_limits(
    wanted: TierName,
    limits: GivenLimits,
    goal: Goal | None,
    predict: Predict,
    able: Sequence[TierName],
    *,
    upwards: bool,
) -> tuple[TierName, tuple[Candidate, ...]]:
    """Return the tier and all candidates that were considered."""
    if goal != "faster" and wanted in able:
        first = _judged(wanted, limits, predict)
        if not first.broken:
            return wanted, (first,)  # no other tier is nearer
    candidates = tuple(_judged(name, limits, predict) for name in able)
    keeping = [candidate for candidate in candidates if not candidate.broken]
    if goal == "faster" and (fastest := _fastest(wanted, keeping)):
        return fastest, candidates
    if keeping:
        return nearest(wanted, [candidate.tier for candidate in keeping], upwards=upwards), candidates
    least = min(candidates, key=lambda candidate: (candidate.broken[0].ratio, _apart(candidate.tier, wanted, upwards)))
    return least.tier, candidates


def _judged(tier: TierName, limits: GivenLimits, predict: Predict) -> Candidate:
    prediction = predict(tier)
    return Candidate(tier, prediction, broken_limits(limits, prediction))


def _apart(tier: TierName, wanted: TierName, upwards: bool) -> tuple[bool, int, int]:
    """Return a sort key: weaker tiers last if `upwards`; the distance from the wanted one; on a tie the stronger."""
    steps = TIER_NAMES.index(tier) - TIER_NAMES.index(wanted)
    return upwards and steps < 0, abs(steps), -steps


def _fastest(wanted: TierName, keeping: list[Candidate]) -> TierName | None:
    """Return the weakest of the fast tiers that are at least as strong as the wanted one; None: there is none."""
    good_enough = [candidate for candidate in keeping if TIER_NAMES.index(candidate.tier) >= TIER_NAMES.index(wanted)]
    if not good_enough:
        return None
    most_ms = FAST_ENOUGH * min(candidate.prediction.total_ms.expected for candidate in good_enough)
    return next(c.tier for c in good_enough if c.prediction.total_ms.expected <= most_ms)
