"""Which limits a prediction breaks, and by how much."""

from __future__ import annotations

from math import inf

from router.constraints import broken_limits, given_limits
from router.prediction import NEVER, UPPER_Z, Estimate, Prediction
from router.request import Constraints

PREDICTION = Prediction(
    ttft_ms=Estimate(100, 0),
    total_ms=Estimate(1000, 0),
    cost_usd=Estimate(0.01, 0),
    energy_wh=Estimate(0.2, 0),
    completion_tokens=Estimate(50, 0),
    ms_per_token=Estimate(18, 0),
    runs=3,
)


def test_only_the_limits_that_are_set_count() -> None:
    assert given_limits(None) == ()
    assert given_limits(Constraints()) == ()
    assert given_limits(Constraints(max_energy_wh=1, max_ttft_ms=5)) == (("max_ttft_ms", 5), ("max_energy_wh", 1))


def test_each_limit_is_held_against_its_own_quantity() -> None:
    exactly = Constraints(max_ttft_ms=100, max_total_ms=1000, max_cost_usd=0.01, max_energy_wh=0.2)
    assert broken_limits(given_limits(exactly), PREDICTION) == ()
    tight = Constraints(max_ttft_ms=50, max_total_ms=250, max_cost_usd=0.009, max_energy_wh=0.02)
    broken = broken_limits(given_limits(tight), PREDICTION)
    assert [(violation.limit, round(violation.ratio, 2)) for violation in broken] == [
        ("max_energy_wh", 10),
        ("max_total_ms", 4),
        ("max_ttft_ms", 2),
        ("max_cost_usd", 1.11),
    ]


def test_a_limit_between_the_expected_and_the_upper_value_is_broken() -> None:
    unsure = PREDICTION._replace(ttft_ms=Estimate(100, 50))
    [violation] = broken_limits((("max_ttft_ms", 120),), unsure)
    assert violation.ratio == (100 + UPPER_Z * 50) / 120
    assert broken_limits((("max_ttft_ms", 165),), unsure) == ()


def test_what_takes_for_ever_breaks_any_limit_of_time() -> None:
    [violation] = broken_limits((("max_total_ms", 1e12),), PREDICTION._replace(total_ms=NEVER))
    assert violation.ratio == inf
