"""An increasing convex curve through noisy points."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

_LEAST_PART = 0.1
"""The curve begins at this part of the lowest point or higher."""


class Point(NamedTuple):
    """One measured value."""

    x: float
    y: float
    error: float
    """Standard error of y."""


def convex_fit(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    """Fitted values at the points (ascending in x), and the slopes between them: not negative, not decreasing.

    Neighbouring intervals whose slopes fall are pooled into one, whose slope is that of the regression line through
    its points, until no slope falls; then the curve is shifted to where the points' weighted mean is. Unlike the lower
    hull of the points, which is convex as well, this does not follow the luckiest of them.
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
    """Slope of the weighted regression line."""
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
