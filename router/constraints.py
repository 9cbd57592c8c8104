"""Which of a request's limits a prediction breaks, and by how much."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from router.prediction import Estimate, Prediction
from router.request import Constraints

Limit = Literal["max_ttft_ms", "max_total_ms", "max_cost_usd", "max_energy_wh"]
LIMITS: tuple[Limit, ...] = get_args(Limit)


GivenLimits = tuple[tuple[Limit, float], ...]
"""The limits of a request, with what they allow."""


class Violation(NamedTuple):
    """A limit that will probably not be kept."""

    limit: Limit
    allowed: float
    predicted: Estimate
    """Its `upper` is more than `allowed`."""

    @property
    def ratio(self) -> float:
        """How many times the allowed value the upper estimate is: over 1."""
        return self.predicted.upper / self.allowed


def given_limits(constraints: Constraints | None) -> GivenLimits:
    """The limits that a request sets."""
    if constraints is None:
        return ()
    return tuple((limit, value) for limit in LIMITS if (value := getattr(constraints, limit)) is not None)


def broken_limits(limits: GivenLimits, prediction: Prediction) -> tuple[Violation, ...]:
    """The limits that the prediction breaks, the worst first.

    A limit is kept where even the upper estimate is within it: it is meant as a promise, not as an average.
    """
    broken = [
        Violation(limit, allowed, predicted)
        for limit, allowed in limits
        if (predicted := getattr(prediction, limit.removeprefix("max_"))).upper > allowed
    ]
    broken.sort(key=lambda violation: violation.ratio, reverse=True)
    return tuple(broken)
