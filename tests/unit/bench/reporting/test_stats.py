"""Percentiles of measured samples."""

import pytest

from bench.reporting.stats import median, percentile


def test_percentiles_are_linear_between_neighbours() -> None:
    assert percentile([50, 10, 40, 20, 30], 90) == pytest.approx(46)
    assert median([4, 1, 2, 3]) == 2.5


def test_no_samples_make_no_number() -> None:
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 50)
