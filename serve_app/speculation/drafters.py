"""Who drafts for a request that leaves it open: the entry's own draft, which costs time, or n-gram lookup.

Each way has its own estimates, for the category and for the request. The way that is expected to be faster at the
present load drafts; the other one is tried now and then for a few steps, more and more rarely while it fails.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log
from typing import Final

from router.registry import Drafts
from serve_app.speculation.acceptance import Belief, CategoryState, Evidence
from serve_app.speculation.allocation import Curve
from serve_app.speculation.cost_curve import StepCost
from serve_app.speculation.exploration import Backoff

_REVIEW_STEPS: Final = 16
"""Steps after which the choice is made again."""
_TRIAL_STEPS: Final = 4
"""Steps of a trial of the other way."""
_FIRST_TRIAL_STEPS: Final = 32
_MOST_TRIAL_STEPS: Final = 512
"""Fewest and most steps between two trials for a request."""
_SWITCH_GAIN: Final = 0.02
"""Least gain of logarithmic speed for which drafting switches."""
_HOPELESS: Final = 0.3
"""Loss of logarithmic speed with which a way that its category knows is not tried."""
KNOWN_TRIALS: Final = 100
"""Trials from which on a category knows a way."""


@dataclass(slots=True)
class Way:
    """A way to draft for a request, and what is known of it."""

    drafts: Drafts
    category: CategoryState
    evidence: Evidence
    belief: Belief
    curve: Curve

    @classmethod
    def new(cls, drafts: Drafts, category: CategoryState, step: int, floor: float, share: float) -> Way:
        """Return what its category knows, for a request that begins; the arguments as of `believe`."""
        evidence = Evidence(step)
        belief = evidence.belief(category.profile, step)
        return cls(drafts, category, evidence, belief, category.curve(belief.level, floor, share))

    def learn(self, drafted: int, accepted: int, step: int, floor: float, share: float) -> None:
        """Learn the outcome of at least one draft token, for the category and for the request; see `believe`."""
        category, before = self.category, self.evidence
        # Where the text has moved on since the two estimates were made, comparing them teaches nothing.
        category.counts.add(drafted, accepted, self.belief if before.step >= step - 2 else None)
        profile = category.profile
        self.evidence = evidence = before.after(profile, drafted, accepted, step)
        self.belief = belief = evidence.belief(profile, step)
        self.curve = category.curve(belief.level, floor, share)

    def believe(self, step: int, floor: float, share: float) -> None:
        """Form the belief again: after new evidence, time, or a new profile of the category.

        Args:
            step: now.
            floor: least expected accepted / drafted; 0: none.
            share: share of the requested drafts that come (0-1).
        """
        self.belief = belief = self.evidence.belief(self.category.profile, step)
        self.curve = self.category.curve(belief.level, floor, share)


@dataclass(slots=True)
class Choice:
    """The choice between two ways that a request leaves open."""

    other: Way
    """Not in use."""
    due: int
    """Step at which to choose again."""
    trying: bool = False
    """The way in use is a trial."""
    trials: Backoff = field(
        default_factory=lambda: Backoff(_FIRST_TRIAL_STEPS, _MOST_TRIAL_STEPS, _FIRST_TRIAL_STEPS, 0)
    )
    """When to try the other way. The first steps show whether it must be known."""

    def review(self, way: Way, cost: StepCost, size: int, step: int) -> Way:
        """Return the way that drafts from now on: what is expected to be faster, or for a few steps the other one.

        Args:
            way: in use. The beliefs of both are up to date.
            cost: step times.
            size: requests in the batch.
            step: now.
        """
        other = self.other
        self.due = step + _REVIEW_STEPS
        now, then = worth(way, cost, size), worth(other, cost, size)
        if then > now + _SWITCH_GAIN:
            if not self.trying:
                self.trials = self.trials.succeeded(step)
            self.trying = False
        elif self.trials.due <= step and is_worth_a_trial(other, now, then):
            self.trials = self.trials.failed(step)
            self.trying = True
            self.due = step + _TRIAL_STEPS
        else:
            self.trying = False
            return way
        self.other = way
        return other


def worth(way: Way, cost: StepCost, size: int) -> float:
    """Return the logarithmic speed of requests like this in a batch of `size` of them, at the best depth.

    Lookups cost nothing.
    """
    best = float("-inf")
    for k, output in enumerate(way.curve.log_output):
        seconds = cost.verify(size * (1 + k)) + (cost.draft(k) if way.drafts == "own" else 0.0)
        best = max(best, output - log(seconds / size))
    return best


def is_worth_a_trial(way: Way, now: float, then: float) -> bool:
    """Return whether a way may turn out to be the better one: its category hardly knows it, or it is not far behind."""
    return way.category.evidence.trials[0] < KNOWN_TRIALS or then > now - _HOPELESS
