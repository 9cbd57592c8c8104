"""Statistics of the past: exponentially fading mean and deviation, and the upper bound of a rate.

The weight of a value halves with every so many values after it and with every so many seconds. The caller gives the
time. Pure, standard library only.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple


class HalfLife(NamedTuple):
    """After how much a value weighs half; both count."""

    values: float
    """Values after it."""
    seconds: float


class Fading(NamedTuple):
    """Statistics of the values so far; begin with `NO_VALUES`."""

    weight: float = 0.0
    """Sum of the weights: the effective number of values."""
    mean: float = 0.0
    squares: float = 0.0
    """Weighted sum of the squared distances from the mean."""

    @property
    def deviation(self) -> float:
        """Weighted standard deviation of the values (of a population: 0 for a single one)."""
        return sqrt(self.squares / self.weight) if self.weight > 0 else 0.0

    def faded(self, kept: float) -> Fading:
        """Return the statistics with every weight times `kept` (0-1): mean and deviation stay."""
        return Fading(self.weight * kept, self.mean, self.squares * kept)

    def with_value(self, value: float) -> Fading:
        """Return the statistics with one more value, of weight 1."""
        return self.merged(Fading(1.0, value))

    def merged(self, other: Fading) -> Fading:
        """Return the statistics of both streams together."""
        weight = self.weight + other.weight
        if weight <= 0:
            return self
        apart = other.mean - self.mean
        share = other.weight / weight
        return Fading(
            weight, self.mean + apart * share, self.squares + other.squares + apart * apart * self.weight * share
        )


NO_VALUES = Fading()


def kept_after(values: float, seconds: float, half_life: HalfLife) -> float:
    """Return what is left (0-1) of a weight after so many values and seconds; negative seconds count as 0."""
    return float(0.5 ** (values / half_life.values + max(0.0, seconds) / half_life.seconds))


def highest_likely_rate(trials: float, rate: float, z: float) -> float:
    """Return the highest rate that is still likely: the upper end of Wilson's score interval, at least the rate itself.

        (n p + z^2 / 2 + z sqrt(n p (1 - p) + z^2 / 4)) / (n + z^2)

    Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927).

    Args:
        trials: number of trials (n), above 0.
        rate: share of successful trials (p, 0-1).
        z: half width of the interval, standard deviations.
    """
    spread = z * sqrt(trials * rate * (1 - rate) + z * z / 4)
    # The quotient may round to less than the rate.
    return max(rate, (trials * rate + z * z / 2 + spread) / (trials + z * z))
