"""Order statistics of measured samples."""

from collections.abc import Sequence


def percentile(samples: Sequence[float], percent: float) -> float:
    """The value below which `percent` (0-100) of the samples lie, linear between neighbours (numpy's default).

    Raises `ValueError` where there are no samples: a benchmark that measured nothing must not report a number.
    """
    if not samples:
        raise ValueError("no samples to take a percentile of")
    if not 0 <= percent <= 100:
        raise ValueError(f"percent must be in 0-100, got {percent}")
    ordered = sorted(samples)
    position = (len(ordered) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def median(samples: Sequence[float]) -> float:
    """The 50th percentile."""
    return percentile(samples, 50)
