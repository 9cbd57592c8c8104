"""Exponentially fading statistics: mean and deviation of a stream of values, where older ones weigh less and less.

A value's weight halves with every so many values that follow it and with every so many seconds. The clock is given.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple


class HalfLife(NamedTuple):
    """After how much a value weighs half."""

    values: float
    """Values that follow it."""
    seconds: float


class Fading(NamedTuple):
    """Statistics of the values so far. `NO_VALUES` is where one begins."""

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
        """With every weight times `kept` (0-1): mean and deviation stay."""
        return Fading(self.weight * kept, self.mean, self.squares * kept)

    def with_value(self, value: float) -> Fading:
        """With one more value, of weight 1."""
        return self.merged(Fading(1.0, value))

    def merged(self, other: Fading) -> Fading:
        """The statistics of both streams' values together."""
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
    """What is left (0-1) of a weight after so many values and seconds; a clock that went back counts as standing."""
    return float(0.5 ** (values / half_life.values + max(0.0, seconds) / half_life.seconds))
