"""What an engine step costs: the curve that decisions use, laid through measured times.

The curve is increasing and convex: flat while the hardware waits for memory, steeper once it computes. It is optimistic
where nothing was measured.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

_LEAST_PART: Final = 0.1
"""The curve begins at this part of the lowest point or higher."""
_TRY: Final = 1.5
"""The curve is as cheap as possible up to this many times the tokens of what was measured: far enough to be tried where
it may pay, and not so far that trying costs much."""


class StepCost(NamedTuple):
    """Predicted time of a step: verifying its tokens, and drafting for the next step.

    Verifying is piecewise linear, increasing and convex: flat while the hardware waits for memory, steeper once it
    computes.
    """

    knots: tuple[float, ...]
    """Batched tokens at which the slope changes, ascending, starting at 1."""
    at_knot_s: tuple[float, ...]
    """Time of a step with as many tokens as each knot, s."""
    slope_s: tuple[float, ...]
    """Time per further token from each knot on, s."""
    drafts_s: tuple[float, ...]
    """Entry k: time of drafting k tokens for every request, s."""

    def at(self, tokens: float) -> tuple[float, float]:
        """Return the time of a step with that many batched tokens and no drafting, s, and of one token more, s."""
        index = max(0, bisect_right(self.knots, tokens) - 1)
        slope = self.slope_s[index]
        return self.at_knot_s[index] + slope * (tokens - self.knots[index]), slope

    def verify(self, tokens: float) -> float:
        """Return the time of a step with that many batched tokens and no drafting, s."""
        return self.at(tokens)[0]

    def draft(self, depth: int) -> float:
        """Return the time of drafting `depth` tokens for each of the requests, s."""
        return self.drafts_s[depth]


class Point(NamedTuple):
    """One measured value."""

    x: float
    y: float
    error: float
    """Standard error of y."""


class VerifyCurve(NamedTuple):
    """Time by batched tokens, piecewise linear."""

    knots: tuple[float, ...]
    """Tokens, ascending from 1."""
    times: tuple[float, ...]
    """At the knots, s."""
    slopes: tuple[float, ...]
    """From each knot on, s per token; not negative, not decreasing."""


def verify_curve(points: Sequence[Point], token_share: float) -> VerifyCurve:
    """Lay the curve through at least one point (tokens ascending from 1).

    In a wide gap between points the curve goes on with the slope that it had, as far as that leaves it convex. Before
    the first point it is as steep as `token_share` (time per token, relative to a step of one token) says, but no
    steeper than after it. Beyond the last point it goes on with the last slope.
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


def convex_fit(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    """Return fitted values at the points (ascending in x), and the slopes between them: not negative, not decreasing.

    Neighbouring intervals whose slopes fall are pooled into one, whose slope is that of the regression line through
    its points, until no slope falls. Then the curve is shifted to the points' weighted mean. The lower hull of the
    points is convex as well, but it follows the luckiest of them.
    """
    lines: list[tuple[float, int, int]] = []  # slope, first point, last point
    for index, (one, other) in enumerate(pairwise(points)):
        slope, first = (other.y - one.y) / (other.x - one.x), index
        while lines and lines[-1][0] >= slope:
            _, first, _ = lines.pop()
            slope = _slope(points[first : index + 2])
        lines.append((slope, first, index + 1))
    slopes = [max(0.0, slope) for slope, first, last in lines for _ in range(last - first)]

    rises = [0.0]
    for slope, (one, other) in zip(slopes, pairwise(points), strict=True):
        rises.append(rises[-1] + slope * (other.x - one.x))
    weights = [1 / (point.error * point.error) for point in points]
    above = [weight * (point.y - rise) for weight, point, rise in zip(weights, points, rises, strict=True)]
    # Where the points contradict each other wildly, the curve still begins above 0.
    start = max(sum(above) / sum(weights), _LEAST_PART * min([point.y for point in points]))
    return [start + rise for rise in rises], slopes


def _slope(points: Sequence[Point]) -> float:
    """Return the slope of the weighted regression line."""
    weight = x_sum = y_sum = 0.0
    for x, y, error in points:
        precision = 1 / (error * error)
        weight += precision
        x_sum += precision * x
        y_sum += precision * y
    x_mean, y_mean = x_sum / weight, y_sum / weight
    above = spread = 0.0
    for x, y, error in points:
        lever = (x - x_mean) / (error * error)
        above += lever * (y - y_mean)
        spread += lever * (x - x_mean)
    return above / spread
