"""Order statistics of measured samples."""

from collections.abc import Sequence

import numpy as np


def percentile(samples: Sequence[float], percent: float) -> float:
    """Return the value below which `percent` (0-100) of the samples lie.

    Raises `ValueError` without samples: a benchmark that measured nothing must not report a number.
    """
    if not samples:
        raise ValueError("no samples to take a percentile of")
    return float(np.percentile(samples, percent))


def median(samples: Sequence[float]) -> float:
    """Return the 50th percentile."""
    return percentile(samples, 50)
