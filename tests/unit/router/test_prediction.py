"""What an answer will take on a tier, and how sure that is."""

from __future__ import annotations

from dataclasses import replace
from math import inf, isfinite, isnan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.difficulty.categories import CATEGORIES
from router.observation import TierState
from router.prediction import PRIOR_RUNS, TIER_RUNS, UPPER_Z, Prediction, predict
from router.runs.summary import Recent, RunSummary
from tests.unit.router.profiles import small_profile
from tests.unit.router.strategies import states

PROFILE = small_profile()
BASELINE = PROFILE.baseline  # 0.1 s to the first token, 50 tokens/s
ECO = PROFILE.tiers["eco"]  # 100 W, 1 USD/h, a cold start of 90 s
WARM = TierState(running=1)
SURE = 1e9
"""So many runs that nothing else counts."""


def predicted(state: TierState = WARM, max_tokens: int = 101, **figures: float) -> Prediction:
    return predict(ECO.model_copy(update=figures), state, "math", max_tokens, BASELINE, 0.5)


def sure(**means: float) -> RunSummary:
    known: dict[str, Any] = {name: Recent(value, 0.0, SURE) for name, value in means.items()}
    return RunSummary(runs=SURE, **known)


def test_a_tier_without_runs_has_the_profiles_figures() -> None:
    made = predicted(expected_ttft_ms=200.0, expected_tokens_per_s=10.0)
    assert made.ttft_ms.expected == 200
    assert made.ms_per_token.expected == pytest.approx(100)
    assert made.completion_tokens.expected == 50.5  # anything up to 101 is as likely
    assert made.total_ms.expected == pytest.approx(200 + 49.5 * 100)
    assert made.runs == 0


def test_a_tier_without_figures_has_the_baselines() -> None:
    made = predicted()
    assert (made.ttft_ms.expected, made.ms_per_token.expected) == pytest.approx((100, 20))


def test_many_runs_replace_the_profiles_figures_and_cost_and_energy_follow_the_time_on_the_engine() -> None:
    runs = sure(engine_ttft_ms=1000, ms_per_token=10, completion_tokens=101, watts=36, usd_per_hour=3.6)
    made = predicted(replace(WARM, recent=runs, queue_wait_ms=500.0))
    assert made.ttft_ms.expected == pytest.approx(1500)
    assert made.total_ms.expected == pytest.approx(2500, rel=1e-6)
    assert made.energy_wh.expected == pytest.approx(0.02, rel=1e-6)  # 36 W for 2 s
    assert made.co2_g.expected == pytest.approx(0.01, rel=1e-6)  # at 500 g/kWh
    assert made.cost_usd.expected == pytest.approx(0.002, rel=1e-6)
    assert made.total_ms.deviation == pytest.approx(500, rel=1e-3)  # that of the queue alone


def test_without_runs_energy_and_cost_are_the_tiers() -> None:
    made = predicted(max_tokens=1, expected_ttft_ms=3_600_000.0)
    assert (made.energy_wh.expected, made.cost_usd.expected) == pytest.approx((100, 1))


def test_the_categorys_runs_replace_the_tiers() -> None:
    tier, category = sure(engine_ttft_ms=1000), sure(engine_ttft_ms=50)
    assert predicted(
        replace(WARM, recent=tier, recent_by_category={"math": category})
    ).ttft_ms.expected == pytest.approx(50)
    assert predicted(
        replace(WARM, recent=tier, recent_by_category={"code": category})
    ).ttft_ms.expected == pytest.approx(1000)


def test_sources_count_by_their_runs() -> None:
    as_many = RunSummary(runs=PRIOR_RUNS, engine_ttft_ms=Recent(300.0, 0.0, PRIOR_RUNS))
    assert predicted(replace(WARM, recent=as_many)).ttft_ms.expected == pytest.approx((100 + 300) / 2)
    kin = RunSummary(runs=TIER_RUNS, engine_ttft_ms=Recent(400.0, 0.0, TIER_RUNS))
    both = replace(WARM, recent=as_many, recent_by_category={"math": kin})
    assert predicted(both).ttft_ms.expected == pytest.approx((200 + 400) / 2)


def test_disagreement_widens_an_estimate_and_agreeing_runs_narrow_it() -> None:
    alike = RunSummary(runs=10, engine_ttft_ms=Recent(100.0, 0.0, 10))
    apart = RunSummary(runs=10, engine_ttft_ms=Recent(1000.0, 0.0, 10))
    unknown = predicted().ttft_ms.deviation
    assert predicted(replace(WARM, recent=alike)).ttft_ms.deviation < unknown
    assert predicted(replace(WARM, recent=apart)).ttft_ms.deviation > unknown


def test_a_cold_tier_waits_for_its_start_and_a_warm_one_in_its_queue() -> None:
    cold = predicted(TierState(cold_start_s=90, queue_wait_ms=5000)).ttft_ms
    assert cold.expected == pytest.approx(90_100)
    assert cold.deviation == pytest.approx(0.25 * 90_000, rel=1e-3)
    assert predicted(TierState(running=1, cold_start_s=90, queue_wait_ms=5000)).ttft_ms.expected == pytest.approx(5100)


def test_a_wait_takes_no_energy() -> None:
    assert predicted(TierState(cold_start_s=90)).energy_wh == predicted().energy_wh
    assert predicted(TierState(cold_start_s=90)).cost_usd == predicted().cost_usd


def test_a_tier_that_cannot_start_has_an_infinite_wait_and_the_usual_cost() -> None:
    made = predicted(TierState(failed=True))
    assert made.ttft_ms.upper == made.total_ms.upper == inf
    assert made.cost_usd == predicted().cost_usd


def test_the_upper_estimate_is_so_many_deviations_over_the_expected_value() -> None:
    ttft = predicted().ttft_ms
    assert ttft.upper == ttft.expected + UPPER_Z * ttft.deviation > ttft.expected


def test_the_expected_length_is_at_most_max_tokens() -> None:
    long = replace(WARM, recent=RunSummary(runs=50, completion_tokens=Recent(1000.0, 500.0, 50)))
    tokens = predicted(long, max_tokens=10).completion_tokens
    assert (tokens.expected, tokens.deviation) == (10, 0)
    wide = replace(WARM, recent=RunSummary(runs=SURE, completion_tokens=Recent(90.0, 500.0, SURE)))
    assert predicted(wide, max_tokens=100).completion_tokens.upper == pytest.approx(100)


@given(states, st.sampled_from(CATEGORIES), st.integers(1, 10_000))
def test_any_state_gives_figures_that_are_neither_negative_nor_undefined(
    state: TierState, category: str, max_tokens: int
) -> None:
    made = predict(ECO, state, category, max_tokens, BASELINE, 0.5)  # type: ignore[arg-type]
    for estimate in made[:6]:
        assert not isnan(estimate.expected)
        assert 0 <= estimate.expected <= estimate.upper
    assert made.ttft_ms.expected <= made.total_ms.expected
    assert made.completion_tokens.upper <= max_tokens * (1 + 1e-9)
    assert isfinite(made.cost_usd.upper)
    assert isfinite(made.energy_wh.upper)
    assert isfinite(made.ttft_ms.upper) == (not state.failed)


@given(states, st.integers(1, 5000), st.integers(1, 5000))
def test_a_higher_max_tokens_never_shortens_the_expected_answer(state: TierState, one: int, other: int) -> None:
    short, long = (predict(ECO, state, "math", most, BASELINE, 0.5) for most in sorted((one, other)))
    assert short.completion_tokens.expected <= long.completion_tokens.expected
    assert short.total_ms.expected <= long.total_ms.expected
    assert short.energy_wh.expected <= long.energy_wh.expected
