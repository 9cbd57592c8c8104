"""Fading mean and deviation, and the highest likely rate."""

from __future__ import annotations

from functools import reduce
from statistics import fmean, pstdev

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.runs.statistics import NO_VALUES, Fading, HalfLife, highest_likely_rate, kept_after

HALF_LIFE = HalfLife(values=10, seconds=100)
values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20)


def of(numbers: list[float]) -> Fading:
    return reduce(Fading.with_value, numbers, NO_VALUES)


def close(one: Fading, other: Fading) -> bool:
    scale = 1 + max(abs(one.mean), abs(other.mean), one.deviation)
    return (one.weight, one.mean, one.deviation) == pytest.approx(
        (other.weight, other.mean, other.deviation), abs=1e-6 * scale
    )


@given(values)
def test_without_fading_mean_and_deviation_are_the_plain_ones(numbers: list[float]) -> None:
    seen = of(numbers)
    assert seen.weight == len(numbers)
    assert seen.mean == pytest.approx(fmean(numbers), abs=1e-6 * (1 + max(map(abs, numbers))))
    assert seen.deviation == pytest.approx(pstdev(numbers), abs=1e-5 * (1 + max(map(abs, numbers))))


@given(values, values)
def test_two_streams_merged_are_one_stream_of_both(first: list[float], second: list[float]) -> None:
    assert close(of(first).merged(of(second)), of(first + second))
    assert close(of(second).merged(of(first)), of(first + second))


@given(values, st.floats(0.01, 1))
def test_fading_leaves_mean_and_deviation_and_takes_weight(numbers: list[float], kept: float) -> None:
    before, after = of(numbers), of(numbers).faded(kept)
    assert after.mean == before.mean
    assert after.deviation == pytest.approx(before.deviation)
    assert after.weight == pytest.approx(before.weight * kept)


def test_a_newer_value_weighs_more() -> None:
    seen = of([0.0]).faded(0.5).with_value(30.0)
    assert (seen.weight, seen.mean) == (1.5, 20.0)


def test_no_values_have_no_weight_and_merge_into_anything() -> None:
    assert (NO_VALUES.weight, NO_VALUES.deviation) == (0, 0)
    assert NO_VALUES.merged(NO_VALUES) == NO_VALUES
    assert of([5.0]).merged(NO_VALUES) == of([5.0]) == NO_VALUES.merged(of([5.0]))


@pytest.mark.parametrize(
    ("after_values", "after_s", "kept"), [(0, 0, 1), (10, 0, 0.5), (0, 100, 0.5), (10, 200, 0.125), (0, -50, 1)]
)
def test_weight_halves_with_values_and_time_and_ignores_a_clock_that_goes_back(
    after_values: float, after_s: float, kept: float
) -> None:
    assert kept_after(after_values, after_s, HALF_LIFE) == pytest.approx(kept)


# --- the highest likely rate ---


def test_the_highest_likely_rate_is_the_one_computed_by_hand() -> None:
    # (0.1 + 9/200 + 3 sqrt(0.09/100 + 9/40000)) / (1 + 9/100)
    assert highest_likely_rate(100, 0.1, 3) == pytest.approx(0.225343, abs=1e-6)
    # None of 100, z = 2: z^2 / (n + z^2).
    assert highest_likely_rate(100, 0, 2) == pytest.approx(4 / 104)
    # (0.5 + 0.02 + 2 sqrt(0.0025 + 0.0001)) / 1.04
    assert highest_likely_rate(100, 0.5, 2) == pytest.approx((0.52 + 2 * 0.0026**0.5) / 1.04)


def test_with_z_0_the_highest_likely_rate_is_the_rate() -> None:
    assert highest_likely_rate(100, 0.1, 0) == pytest.approx(0.1)


def test_without_evidence_the_highest_likely_rate_is_1() -> None:
    assert highest_likely_rate(1e-308, 0, 2) == 1


@given(st.floats(1e-6, 1e6), st.floats(0, 1), st.floats(0.1, 5))
@example(1618, 1.0, 3)  # the quotient alone is 1 - 1e-16
def test_the_highest_likely_rate_is_at_least_the_rate_and_falls_with_evidence(
    trials: float, rate: float, z: float
) -> None:
    upper = highest_likely_rate(trials, rate, z)
    assert rate <= upper <= 1 + 1e-9
    assert highest_likely_rate(10 * trials, rate, z) <= upper + 1e-9
