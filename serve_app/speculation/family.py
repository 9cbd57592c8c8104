"""What is known of a prompt family on this engine: acceptance by draft position, and how bursty its text is."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import exp
from typing import NamedTuple

from serve_app.speculation.settings import AcceptanceSettings

CERTAIN = 0.995
"""Estimates stay within 1 - CERTAIN and CERTAIN, so that odds stay finite."""


class Profile(NamedTuple):
    """A family's acceptance by position, in the forms that its requests' estimates need.

    A NamedTuple, as every value here that is made once a step or oftener: making one takes a fifth of the time of a
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
    """What one step showed of a family, gathered over its requests."""

    __slots__ = ("accepted", "compared", "contrast", "drafted", "ended", "product", "rejected")

    def __init__(self, k_max: int) -> None:
        self.accepted = 0
        self.drafted = 0
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

    def add(self, drafted: int, accepted: int, steady: float, quick: float | None) -> None:
        """One request's outcome, and its two estimates of position 0 before; quick is None where it was too old."""
        self.drafted += drafted
        self.accepted += accepted
        self.ended[accepted] += 1
        if accepted < drafted:
            self.rejected[accepted] += 1
        if quick is not None:
            contrast = quick - steady
            self.compared += 1
            self.product += ((1.0 if accepted else 0.0) - steady) * contrast
            self.contrast += contrast * contrast


@dataclass(frozen=True, slots=True)
class Family:
    """A family's evidence: exponentially forgotten trials and successes by position, and totals since the start."""

    prior: tuple[float, ...]
    """Acceptance by position before any evidence."""
    accepted: tuple[float, ...]
    """Remembered successes by position."""
    trials: tuple[float, ...]
    """Remembered trials by position."""
    product: float = 0.0
    contrast: float = 0.0
    """Remembered sums of `StepCounts`; their ratio is the least-squares share of the quick estimate."""
    total_drafted: int = 0
    total_accepted: int = 0

    @classmethod
    def new(cls, name: str, k_max: int, settings: AcceptanceSettings) -> Family:
        """A family of which nothing was seen."""
        told = settings.prior.get(name, settings.default_prior)
        prior = tuple(_inside(told[min(position, len(told) - 1)]) for position in range(k_max))
        nothing = (0.0,) * k_max
        return cls(prior, nothing, nothing)

    def after(self, counts: StepCounts, settings: AcceptanceSettings) -> Family:
        """With the evidence of one more step."""
        memory = settings.family_memory_trials
        accepted, trials = list(self.accepted), list(self.trials)
        passed = sum(counts.ended)
        for position in range(len(trials)):
            passed -= counts.ended[position]
            tried = passed + counts.rejected[position]
            if tried:
                kept = exp(-tried / memory)
                accepted[position] = accepted[position] * kept + passed
                trials[position] = trials[position] * kept + tried
            if not passed:
                break
        kept = exp(-counts.compared / memory)
        return Family(
            prior=self.prior,
            accepted=tuple(accepted),
            trials=tuple(trials),
            product=self.product * kept + counts.product,
            contrast=self.contrast * kept + counts.contrast,
            total_drafted=self.total_drafted + counts.drafted,
            total_accepted=self.total_accepted + counts.accepted,
        )

    def acceptance(self, settings: AcceptanceSettings) -> tuple[float, ...]:
        """Estimated acceptance by position: Beta posterior means.

        The prior of a position is the settings' value, moved as far (in odds) as the position before it turned out to
        be from its own: so a position that was never reached borrows from its neighbour.
        """
        weight = settings.prior_trials
        estimates = list[float]()
        moved = 1.0
        for told, accepted, trials in zip(self.prior, self.accepted, self.trials, strict=True):
            odds = told / (1 - told) * moved
            prior = odds / (1 + odds)
            estimate = _inside((accepted + weight * prior) / (trials + weight))
            estimates.append(estimate)
            moved = estimate / (1 - estimate) * (1 - told) / told
        return tuple(estimates)

    def profile(self, settings: AcceptanceSettings) -> Profile:
        """The same and more, in the forms that requests need."""
        acceptance = self.acceptance(settings)
        # A trial at which the two estimates differ by 0.5 weighs as one.
        weight = 0.25 * settings.quickness_prior_trials
        quickness = (self.product + weight * settings.quickness_prior) / (self.contrast + weight)
        return Profile(
            odds=tuple([estimate / (1 - estimate) for estimate in acceptance]),
            expected=(0.0, *accumulate(acceptance)),
            first=acceptance[0],
            quickness=min(1.0, max(0.0, quickness)),
        )


def _inside(probability: float) -> float:
    return min(CERTAIN, max(1 - CERTAIN, probability))


def known_trials(drafted: int, accepted: int) -> int:
    """Draft tokens of a step whose fate is known: the accepted ones and the first rejected one."""
    return accepted + 1 if accepted < drafted else accepted
