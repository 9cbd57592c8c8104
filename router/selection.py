"""Which tier a prompt gets in auto mode: what its difficulty deserves, shifted by a goal, within the user's limits.

**The wanted tier.** The difficulty's own; a goal counts the prompt as two points easier or harder:

    cheaper, greener   difficulty - 2. A safety-critical prompt keeps its own: it is not under-served for a goal.
    better             difficulty + 2
    faster             unchanged; but of the tiers from the wanted one upwards, the weakest whose predicted total time
                       is within a tenth of the fastest's

Two points are at most one tier, and none where the difficulty is at a tier's upper end: a goal shades the choice.

**The limits.** Of the tiers that keep all of them, the nearest to the wanted one; of two as near, the stronger. If none
does, the one whose worst violation is least, and of equals the nearest. Limits are the user's explicit word: they win over
goal and difficulty, also for a safety-critical prompt, and the trace says what gave way.

So a harder prompt never gets a lower tier, all else equal; and where a limit can be kept, it is kept also by the plan
for a tighter one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from router.constraints import Limit, Violation, broken_limits
from router.predict import Prediction
from router.request import Goal
from router.signals import Category
from router.tiers import TIER_NAMES, TierName

GOAL_POINTS: dict[Goal, int] = {"faster": 0, "cheaper": -2, "greener": -2, "better": 2}
"""By how many points of difficulty (1-10) a goal shifts the wanted tier."""
FAST_ENOUGH = 1.1
"""`faster` takes no stronger tier for less than this factor in predicted time."""

Predict = Callable[[TierName], Prediction]


class Choice(NamedTuple):
    """A chosen tier and how it does."""

    tier: TierName
    prediction: Prediction
    broken: tuple[Violation, ...]
    """Limits that it will probably break, the worst first."""


def difficulty_for_goal(difficulty: int, category: Category, goal: Goal | None) -> int:
    """The difficulty (1-10) that a prompt counts as."""
    if goal is None:
        return difficulty
    points = GOAL_POINTS[goal]
    if points < 0 and category == "safety_critical":
        return difficulty
    return min(10, max(1, difficulty + points))


def choose(wanted: TierName, limits: tuple[tuple[Limit, float], ...], goal: Goal | None, predict: Predict) -> Choice:
    """The tier for a prompt that wants one, within limits.

    Args:
        wanted: the tier that the prompt's difficulty and the goal ask for.
        limits: what must be kept; may be empty.
        goal: only `faster` matters here.
        predict: what the answer will take on a tier.
    """
    choices = [judged(name, limits, predict) for name in TIER_NAMES]
    keeping = [choice for choice in choices if not choice.broken]
    if keeping and goal == "faster":
        return _fastest(wanted, keeping)
    if keeping:
        return min(keeping, key=lambda choice: _distance(choice, wanted))
    return min(choices, key=lambda choice: (choice.broken[0].ratio, _distance(choice, wanted)))


def judged(tier: TierName, limits: tuple[tuple[Limit, float], ...], predict: Predict) -> Choice:
    """How a given tier does."""
    prediction = predict(tier)
    return Choice(tier, prediction, broken_limits(limits, prediction))


def _distance(choice: Choice, wanted: TierName) -> tuple[int, int]:
    """Sorts by how far a tier is from the wanted one, of two as far the stronger first."""
    apart = TIER_NAMES.index(choice.tier) - TIER_NAMES.index(wanted)
    return abs(apart), -apart


def _fastest(wanted: TierName, keeping: list[Choice]) -> Choice:
    good_enough = [choice for choice in keeping if TIER_NAMES.index(choice.tier) >= TIER_NAMES.index(wanted)]
    if not good_enough:
        return min(keeping, key=lambda choice: _distance(choice, wanted))
    most_ms = FAST_ENOUGH * min(choice.prediction.total_ms.expected for choice in good_enough)
    return next(choice for choice in good_enough if choice.prediction.total_ms.expected <= most_ms)
