"""Who drafts for a request that leaves it open: the entry's own draft, which costs time, or n-gram lookup.

Each way has its own estimates, for the category and for the request. The way that is expected to be faster at the
present load drafts; the other one is tried now and then for a few steps, more and more rarely while it fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Final

from router.registry import Drafts
from serve_app.speculation.acceptance import Belief, CategoryState, Evidence
from serve_app.speculation.allocation import Curve
from serve_app.speculation.cost_curve import StepCost
from serve_app.speculation.exploration import Backoff

REVIEW_STEPS: Final = 16
"""Steps after which the choice is made again."""
TRIAL_STEPS: Final = 4
"""Steps of a trial of the other way."""
FIRST_TRIAL_STEPS: Final = 32
MOST_TRIAL_STEPS: Final = 512
"""Fewest and most steps between two trials for a request."""
SWITCH_GAIN: Final = 0.02
"""Least gain of logarithmic speed for which drafting switches."""
HOPELESS: Final = 0.3
"""Loss of logarithmic speed with which a way that its category knows is not tried."""
KNOWN_TRIALS: Final = 100
"""Trials from which on a category knows a way."""


@dataclass(slots=True)
class Way:
    """What is known of one way to draft for a request, while the other one is in use."""

    drafts: Drafts
    category: CategoryState
    evidence: Evidence
    belief: Belief
    curve: Curve


def worth(drafts: Drafts, curve: Curve, cost: StepCost, size: int) -> float:
    """Return the logarithmic speed of requests like this in a batch of `size` of them, at the best depth.

    Lookups cost nothing.
    """
    best = float("-inf")
    for k, output in enumerate(curve.log_output):
        seconds = cost.verify(size * (1 + k)) + (cost.draft(k) if drafts == "own" else 0.0)
        best = max(best, output - log(seconds / size))
    return best


def trials() -> Backoff:
    """Return when to try the other way, of a request that begins: its first steps show whether it must be known."""
    return Backoff(FIRST_TRIAL_STEPS, MOST_TRIAL_STEPS, FIRST_TRIAL_STEPS, due=0)


def is_worth_a_trial(way: Way, now: float, then: float) -> bool:
    """Return whether a way may turn out to be the better one: its category hardly knows it, or it is not far behind."""
    return way.category.evidence.trials[0] < KNOWN_TRIALS or then > now - HOPELESS
