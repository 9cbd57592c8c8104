"""How likely the next draft tokens are to be accepted: by category, and for each request on top of its category.

A request is described by one number on top of its category's profile: an odds ratio, how much likelier its drafts are
accepted than its category's. Where a position differs from the one before it is a matter of how drafts are made, which
the category learns from all its requests. How well this text can be drafted right now is a matter of the request, and a
single number learns from every trial at any position. This is the Mantel-Haenszel idea: remembered successes over
failures, over those that the profile led to expect, both with the prior's trials added. For trials at position 0 it is
the Beta-Bernoulli posterior mean.

Text is steady or bursty (a copied passage is accepted whole, the prose after it not at all), and no single memory suits
both. So each request has a steady estimate (long memory, shrunk to the category) and a quick one (a few tokens, shrunk
to the steady one), and the category learns by least squares which mix predicts best (`AcceptanceProfile.quickness`).

A trial is a draft token whose fate is known: accepted, or the first rejected one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import exp, log
from typing import Final, NamedTuple

from serve_app.speculation.allocation import Curve

PRIOR: Final[Mapping[str, float]] = {"code": 0.65, "math": 0.6, "creative": 0.4}
"""By category: probability (0-1) that a draft token is accepted when those before it were, before anything was seen."""
OTHER_PRIOR: Final = 0.5
"""The same for the other categories."""
PRIOR_TRIALS: Final = 10.0
"""Weight of the prior in a category's estimate, trials per position."""
MEMORY_TRIALS: Final = 1000.0
"""Memory of a category's estimate, trials per position: older ones fade by e."""
GROWTH: Final = 0.1
"""A category's requests learn of its new trials when these are this share of the remembered ones,"""
RENEWED_STEPS: Final = 3
"""and, once that many are remembered that little is new in a step, after so many steps with outcomes."""
QUICKNESS_PRIOR: Final = 0.2
"""Share (0-1) of the quick estimate in a request's, until the category's text has shown how bursty it is."""
QUICKNESS_PRIOR_TRIALS: Final = 2.0
"""Weight of `QUICKNESS_PRIOR`, in trials at which the two estimates differ."""

REQUEST_PRIOR_TRIALS: Final = 30.0
"""Weight of the category's estimate in a request's steady estimate, trials."""
REQUEST_MEMORY_TRIALS: Final = 120.0
"""Memory of a request's steady estimate, trials: older ones fade by e."""
REQUEST_IDLE_STEPS: Final = 100.0
"""How long a request's steady estimate holds while nothing is drafted, steps: it fades by e."""
QUICK_PRIOR_TRIALS: Final = 1.5
"""Weight of a request's steady estimate in its quick estimate, trials."""
QUICK_MEMORY_TRIALS: Final = 5.0
"""Memory of a request's quick estimate, trials: older ones fade by e."""
QUICK_IDLE_STEPS: Final = 25.0
"""How long a request's quick estimate holds while nothing is drafted, steps: it fades by e."""

LEVEL: Final = 0.15
"""Requests whose log-odds of acceptance differ by less are treated alike (0.04 at an acceptance of 0.5, which is less
than their estimates' errors), so that a batch of hundreds has a few dozen kinds of requests."""
_CERTAIN: Final = 0.995
"""Estimates stay within 1 - CERTAIN and CERTAIN, so that odds stay finite."""
_FORGOTTEN: Final = 20.0
"""Memories after which nothing is left (exp(-20) of it), and nothing changes any more."""
_MOST_TRIALS: Final = 32
"""Most draft tokens of a request in a step (the registry's bound on `k_max`)."""
_KEPT: Final = tuple(
    [(exp(-trials / REQUEST_MEMORY_TRIALS), exp(-trials / QUICK_MEMORY_TRIALS)) for trials in range(_MOST_TRIALS + 1)]
)
"""By trials in a step: what they leave of a request's steady and quick memory."""
_MOST_CURVES: Final = 1000
"""Curves kept for a category: each floor that requests ask for makes its own."""


class AcceptanceProfile(NamedTuple):
    """A category's acceptance by position, in the forms that its requests' estimates need.

    A NamedTuple, as every value here that is made once a step or more often: making one takes a fifth of the time of a
    frozen dataclass.
    """

    odds: tuple[float, ...]
    """Odds a / (1 - a) that the draft token at each position is accepted when those before it were."""
    expected: tuple[float, ...]
    """Entry j: sum of the acceptance of positions 0..j-1, tokens."""
    first: float
    """Acceptance at position 0 (0-1)."""
    quickness: float
    """Share (0-1) of the quick estimate in a request's estimate: near 0 for steady text, near 1 for bursty text."""


class StepCounts:
    """What one step showed of a category, gathered over its requests."""

    __slots__ = ("compared", "contrast", "ended", "product", "rejected")

    def __init__(self, k_max: int) -> None:
        self.ended = [0] * (k_max + 1)
        """Entry j: requests of which exactly j draft tokens were accepted."""
        self.rejected = [0] * (k_max + 1)
        """Entry j: those among them whose next draft token was rejected (the others had drafted no more)."""
        self.compared = 0
        """Requests whose quick and steady estimates could be compared."""
        self.product = 0.0
        """Sum over these of (outcome at position 0 - steady estimate) x (quick estimate - steady estimate)."""
        self.contrast = 0.0
        """Sum over these of (quick estimate - steady estimate) squared."""

    def add(self, drafted: int, accepted: int, belief: Belief | None) -> None:
        """Add one request's outcome, and what was believed of it before; None: that is too old to compare it."""
        self.ended[accepted] += 1
        if accepted < drafted:
            self.rejected[accepted] += 1
        if belief is not None:
            steady, quick, _ = belief
            contrast = quick - steady
            self.compared += 1
            self.product += ((1.0 if accepted else 0.0) - steady) * contrast
            self.contrast += contrast * contrast


@dataclass(frozen=True, slots=True)
class CategoryEvidence:
    """What was seen of a category: exponentially forgotten trials and successes by position."""

    prior: float
    """Acceptance before any evidence."""
    accepted: tuple[float, ...]
    """Remembered successes by position."""
    trials: tuple[float, ...]
    """Remembered trials by position."""
    product: float = 0.0
    contrast: float = 0.0
    """Remembered sums of `StepCounts`; their ratio is the least-squares share of the quick estimate."""

    @classmethod
    def none(cls, category: str, k_max: int) -> CategoryEvidence:
        """Return that of a category of which nothing was seen."""
        nothing = (0.0,) * k_max
        return cls(PRIOR.get(category, OTHER_PRIOR), nothing, nothing)

    def after(self, counts: StepCounts) -> CategoryEvidence:
        """Return the evidence with one more step."""
        accepted, trials = list(self.accepted), list(self.trials)
        passed = sum(counts.ended)
        for position in range(len(trials)):
            passed -= counts.ended[position]
            tried = passed + counts.rejected[position]
            if tried:
                kept = exp(-tried / MEMORY_TRIALS)
                accepted[position] = accepted[position] * kept + passed
                trials[position] = trials[position] * kept + tried
            if not passed:
                break
        kept = exp(-counts.compared / MEMORY_TRIALS)
        return CategoryEvidence(
            self.prior,
            tuple(accepted),
            tuple(trials),
            product=self.product * kept + counts.product,
            contrast=self.contrast * kept + counts.contrast,
        )

    def acceptance(self) -> tuple[float, ...]:
        """Return the estimated acceptance by position: Beta posterior means.

        A position's prior is the estimate of the position before it. So a position that was never reached borrows from
        its neighbour.
        """
        estimates = list[float]()
        estimate = self.prior
        for accepted, trials in zip(self.accepted, self.trials, strict=True):
            estimate = _inside((accepted + PRIOR_TRIALS * estimate) / (trials + PRIOR_TRIALS))
            estimates.append(estimate)
        return tuple(estimates)

    def profile(self) -> AcceptanceProfile:
        """Return the acceptance and the quickness, in the forms that requests need."""
        acceptance = self.acceptance()
        # A trial at which the two estimates differ by 0.5 weighs as one.
        weight = 0.25 * QUICKNESS_PRIOR_TRIALS
        quickness = (self.product + weight * QUICKNESS_PRIOR) / (self.contrast + weight)
        return AcceptanceProfile(
            odds=tuple([estimate / (1 - estimate) for estimate in acceptance]),
            expected=(0.0, *accumulate(acceptance)),
            first=acceptance[0],
            quickness=min(1.0, max(0.0, quickness)),
        )


class CategoryState:
    """What the controller holds of a category."""

    __slots__ = ("counts", "curves", "evidence", "new_steps", "new_trials", "profile", "tau")

    def __init__(self, category: str, k_max: int) -> None:
        self.evidence = CategoryEvidence.none(category, k_max)
        self.profile = self.evidence.profile()
        """Of the evidence when enough of it was new for the last time."""
        self.curves: dict[tuple[int, float], Curve] = {}
        """By level and floor, for the profile."""
        self.counts = StepCounts(k_max)
        """Of the step being observed."""
        self.tau: float | None = None
        """Acceptance rate (0-1) below which drafts do not pay on this engine at this load; None: too little is known.
        """
        self.new_trials = self.new_steps = 0
        """Requests' outcomes, and steps with some, since the profile was made."""

    @property
    def level(self) -> int:
        """The category's own level, that of a request of which nothing was seen."""
        return round(log(self.profile.odds[0]) / LEVEL)

    def curve(self, level: int, floor: float, share: float) -> Curve:
        """Return the curve of requests at that level with that floor (0: none), where that share of drafts comes."""
        curve = self.curves.get((level, floor))
        if curve is None:
            gains = gains_at(level, self.profile)
            if len(self.curves) >= _MOST_CURVES:
                self.curves.clear()
            curve = self.curves[level, floor] = Curve.of(within_floor(gains, floor), share)
        return curve

    def learn(self) -> None:
        """Take in the step's counts; renew the profile when there are enough new trials."""
        outcomes = sum(self.counts.ended)
        if not outcomes:
            return
        self.evidence = self.evidence.after(self.counts)
        self.counts = StepCounts(len(self.evidence.trials))
        self.new_trials += outcomes
        self.new_steps += 1
        remembered = self.evidence.trials[0]
        due = self.new_steps >= RENEWED_STEPS or remembered < MEMORY_TRIALS / 2
        if due and self.new_trials >= GROWTH * remembered:
            self.profile = self.evidence.profile()
            self.curves.clear()
            self.new_trials = self.new_steps = 0


class Evidence(NamedTuple):
    """What was seen of one request's drafts: remembered trials, and what the profile expected of them."""

    step: int
    """When it was last added to."""
    accepted: float = 0.0
    trials: float = 0.0
    expected: float = 0.0
    """Trials that the profile expected to be accepted."""
    quick_accepted: float = 0.0
    quick_trials: float = 0.0
    quick_expected: float = 0.0

    def after(self, profile: AcceptanceProfile, drafted: int, accepted: int, step: int) -> Evidence:
        """Return the evidence with the outcome of a step.

        Args:
            profile: of the request's category.
            drafted: verified draft tokens, at least 1.
            accepted: how many of them were accepted.
            step: now.
        """
        last, old_accepted, old_trials, old_expected, quick_accepted, quick_trials, quick_expected = self
        trials = accepted + 1 if accepted < drafted else accepted
        expected = profile.expected[trials]
        keep, quick = _KEPT[trials]
        idle = step - last - 1
        if idle > 0:
            # The text moved on unseen.
            keep *= exp(-idle / REQUEST_IDLE_STEPS)
            quick *= exp(-idle / QUICK_IDLE_STEPS)
        values = (
            step,
            old_accepted * keep + accepted,
            old_trials * keep + trials,
            old_expected * keep + expected,
            quick_accepted * quick + accepted,
            quick_trials * quick + trials,
            quick_expected * quick + expected,
        )
        return tuple.__new__(Evidence, values)  # half the time of the constructor; once a request and step

    def belief(self, profile: AcceptanceProfile, step: int) -> Belief:
        """Return the posterior as of this step."""
        last, accepted, trials, expected, quick_accepted, quick_trials, quick_expected = self
        odds, _, first, quickness = profile
        prior, quick_prior = REQUEST_PRIOR_TRIALS, QUICK_PRIOR_TRIALS
        idle = step - last - 1
        if idle > 0:
            # Forgotten evidence is the same as a heavier prior.
            prior *= exp(min(_FORGOTTEN, idle / REQUEST_IDLE_STEPS))
            quick_prior *= exp(min(_FORGOTTEN, idle / QUICK_IDLE_STEPS))
        first_odds = odds[0]
        hits = prior * first
        misses = prior - hits
        likely = first_odds * (accepted + hits) * (trials - expected + misses)
        steady = likely / (likely + (trials - accepted + misses) * (expected + hits))

        hits = quick_prior * first
        prior = quick_prior * steady
        likely = first_odds * (quick_accepted + prior) * (quick_trials - quick_expected + quick_prior - hits)
        quick = likely / (likely + (quick_trials - quick_accepted + quick_prior - prior) * (quick_expected + hits))

        mixed = steady + quickness * (quick - steady)
        if mixed > _CERTAIN:
            mixed = _CERTAIN
        elif mixed < 1 - _CERTAIN:
            mixed = 1 - _CERTAIN
        return tuple.__new__(Belief, (steady, quick, round(log(mixed / (1 - mixed)) / LEVEL)))


class Belief(NamedTuple):
    """What the evidence says of a request."""

    steady: float
    """Steady estimate of the acceptance at position 0 (0-1)."""
    quick: float
    """Quick estimate of the same."""
    level: int
    """The estimate that counts, a mix of the two: its log-odds in units of `LEVEL`."""


def gains_at(level: int, profile: AcceptanceProfile) -> tuple[float, ...]:
    """Return the gains of a request at that level. Entry j: probability that draft tokens 0..j are all accepted."""
    ratio = exp(level * LEVEL) / profile.odds[0]
    reached = 1.0
    gains = []
    for odds in profile.odds:
        likely = odds * ratio
        reached *= likely / (1 + likely)
        gains.append(reached)
    return tuple(gains)


def within_floor(gains: tuple[float, ...], floor: float) -> tuple[float, ...]:
    """Return the gains of as many draft tokens as are expected to keep accepted / drafted at the floor, at least one.

    So an `auto` request with a floor drafts fewer tokens before it would be stopped for drafting too many. Floor 0:
    all.
    """
    total = 0.0
    for count, gain in enumerate(gains, 1):
        total += gain
        if total < floor * count:
            return gains[: max(1, count - 1)]
    return gains


def _inside(probability: float) -> float:
    return min(_CERTAIN, max(1 - _CERTAIN, probability))
