"""The score of a router: how much of the strong model's gain it recovers, for every share of prompts sent there.

Prompts are ordered by the router's score, highest first, and go to the strong model one after the other. The gain,
`strong_score - weak_score`, is summed and divided by the gain of sending them all. APGR (average performance gap
recovered) is the area under this curve over the share sent. It is 0.5 for a router that guesses, and more than 1 for
one that knows the outcomes, because that leaves out the prompts that only the weak model gets right.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

Curve = tuple[tuple[float, float], ...]
"""Points (share sent to the strong model, share of its gain recovered), from (0, 0) to (1, 1)."""


def gain_curve(scores: Sequence[float], gains: Sequence[float], weights: Sequence[float] | None = None) -> Curve:
    """Return the curve of these scores. Prompts of the same score have no order: they are one straight piece of it.

    Args:
        scores: of the router; the highest goes to the strong model first.
        gains: the strong model's result minus the weak one's, for the same prompts.
        weights: of the prompts, both in the share sent and in the gain; None: all the same.

    Raises:
        ValueError: the two differ in length, there are none, or the strong model gains nothing over all.
    """
    if len(scores) != len(gains):
        raise ValueError(f"{len(scores)} scores for {len(gains)} gains")
    weights = [1.0] * len(gains) if weights is None else weights
    total = sum(gain * weight for gain, weight in zip(gains, weights, strict=True))
    if total <= 0:
        raise ValueError(f"the strong model must gain over the weak one, gained {total} over {len(gains)} prompts")
    whole = sum(weights)
    ordered = sorted(zip(scores, gains, weights, strict=True), key=lambda row: -row[0])
    points, sent, recovered = [(0.0, 0.0)], 0.0, 0.0
    for _, group in groupby(ordered, key=lambda row: row[0]):
        for _, gain, weight in group:
            sent += weight
            recovered += gain * weight
        points.append((sent / whole, recovered / total))
    return tuple(points)


def area(curve: Curve) -> float:
    """Return the area under a curve, by trapezoids."""
    return sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in pairwise(curve))


def apgr(scores: Sequence[float], gains: Sequence[float], weights: Sequence[float] | None = None) -> float:
    """Return the area under `gain_curve`."""
    return area(gain_curve(scores, gains, weights))


def recovered_at(curve: Curve, share: float) -> float:
    """Return the share of the gain recovered if `share` (0-1) of the prompts go to the strong model."""
    for (x0, y0), (x1, y1) in pairwise(curve):
        if share <= x1:
            return y0 + (y1 - y0) * (share - x0) / (x1 - x0)
    return curve[-1][1]
