"""From measured verify times to the curve that decisions use: convex, and optimistic where nothing was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from serve_app.speculation.convex import Point, convex_fit

_TRY = 1.5
"""What was not tried is taken to cost as little as possible up to so many times the tokens of what was: far enough to
be tried where it may pay, and not so far that trying costs much."""


class VerifyCurve(NamedTuple):
    """Time by batched tokens, piecewise linear."""

    knots: tuple[float, ...]
    """Tokens, ascending from 1."""
    times: tuple[float, ...]
    """At the knots, s."""
    slopes: tuple[float, ...]
    """From each knot on, s per token; not negative, not decreasing."""


def verify_curve(points: Sequence[Point], token_share: float) -> VerifyCurve:
    """The curve through at least one point (tokens ascending from 1).

    A wide gap between points begins as steep as the curve came, as far as that leaves it convex. Before the first
    point it is as steep as `token_share` (time per token, relative to a step of one token) says, but no steeper than
    after it; beyond the last it goes on as it came.
    """
    values, steps = convex_fit(points)
    knots, times = list[float](), list[float]()
    slopes = list[float]()
    for index, step in enumerate(steps):
        here, there = points[index].x, points[index + 1].x
        knots.append(here)
        times.append(values[index])
        before = slopes[-1] if slopes else 0.0
        if there > _TRY * _TRY * here and step > before:
            middle = _TRY * here
            steepest = steps[index + 1] if index + 1 < len(steps) else float("inf")
            value = max(values[index] + before * (middle - here), values[index + 1] - steepest * (there - middle))
            slopes.append((value - values[index]) / (middle - here))
            knots.append(middle)
            times.append(value)
            step = (values[index + 1] - value) / (there - middle)
        slopes.append(step)
    first = points[0].x
    prior = values[0] * token_share / (1 + token_share * (first - 1))
    knots.append(points[-1].x)
    times.append(values[-1])
    slopes.append(slopes[-1] if slopes else prior)
    if first > 1:
        slope = min(prior, slopes[0])
        knots.insert(0, 1.0)
        times.insert(0, values[0] - slope * (first - 1))
        slopes.insert(0, slope)
    return VerifyCurve(tuple(knots), tuple(times), tuple(slopes))
