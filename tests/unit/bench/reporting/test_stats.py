import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.reporting.stats import median, percentile

samples = st.lists(st.floats(-1e6, 1e6), min_size=1)


@pytest.mark.parametrize(
    ("percent", "expected"),
    [(0, 10), (50, 30), (100, 50), (25, 20), (99, 49.6)],  # 99: position 3.96 between 40 and 50
)
def test_percentile_is_linear_between_neighbours(percent: float, expected: float) -> None:
    assert percentile([50, 10, 40, 20, 30], percent) == pytest.approx(expected)


def test_median_of_an_even_number_is_the_mean_of_the_middle_two() -> None:
    assert median([4, 1, 2, 3]) == 2.5


def test_percentile_of_nothing_is_an_error_not_a_number() -> None:
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 50)


@pytest.mark.parametrize("percent", [-1, 100.1, float("nan")])
def test_percent_outside_0_to_100_is_refused(percent: float) -> None:
    with pytest.raises(ValueError, match="0-100"):
        percentile([1], percent)


@given(samples, st.floats(0, 100), st.floats(0, 100))
def test_percentiles_are_within_the_samples_and_in_order(values: list[float], one: float, other: float) -> None:
    low, high = (percentile(values, percent) for percent in sorted((one, other)))
    assert min(values) - 1e-6 <= low <= high + 1e-6 <= max(values) + 2e-6
