"""How high a rate may really be, of which only so many trials were seen."""

from __future__ import annotations

from math import sqrt


def highest_likely_rate(trials: float, rate: float, z: float) -> float:
    """The highest rate that is still likely: upper end of Wilson's score interval, never under the rate itself.

        (n p + z^2 / 2 + z sqrt(n p (1 - p) + z^2 / 4)) / (n + z^2)

    Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927).

    Args:
        trials: how many (n), above 0.
        rate: share of them that succeeded (p, 0-1).
        z: half width of the interval, standard deviations.
    """
    spread = z * sqrt(trials * rate * (1 - rate) + z * z / 4)
    # The quotient may round to less than the rate.
    return max(rate, (trials * rate + z * z / 2 + spread) / (trials + z * z))
