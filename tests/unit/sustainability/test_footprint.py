import math
from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sustainability import Footprint, baseline_seconds, footprint, load_factors

FACTORS = load_factors()
watts = st.floats(0, 10_000)
prices = st.floats(0, 1_000)
times = st.floats(0, 1e6)


def test_an_hour_of_a_700_watt_gpu_has_the_footprint_worked_out_by_hand() -> None:
    result = footprint(active_watts=700, price_usd_per_hour=6.88, seconds=3600, factors=FACTORS)
    assert result.energy_wh == pytest.approx(700)  # 700 W * 1 h
    assert result.water_l == pytest.approx(1.26)  # 0.7 kWh * 1.8 L/kWh
    assert result.co2_g == pytest.approx(273)  # 0.7 kWh * 0.39 kg/kWh * 1000 g/kg
    assert result.cost_usd == pytest.approx(6.88)


def test_five_seconds_of_an_l4_have_the_footprint_worked_out_by_hand() -> None:
    result = footprint(active_watts=72, price_usd_per_hour=0.805, seconds=5, factors=FACTORS)
    assert result.energy_wh == pytest.approx(0.1)  # 72 W * 5 s / 3600 s/h
    assert result.water_l == pytest.approx(0.00018)  # 0.0001 kWh * 1.8 L/kWh
    assert result.co2_g == pytest.approx(0.039)  # 0.0001 kWh * 390 g/kWh
    assert result.cost_usd == pytest.approx(0.00111805, rel=1e-5)  # 0.805 USD/h * 5/3600 h


def test_no_time_costs_nothing() -> None:
    assert footprint(700, 6.88, 0, FACTORS) == Footprint(energy_wh=0, water_l=0, co2_g=0, cost_usd=0)


@given(watts, prices, times, times)
def test_footprints_of_two_times_add_up(power: float, price: float, first: float, then: float) -> None:
    parts = zip(
        astuple(footprint(power, price, first, FACTORS)), astuple(footprint(power, price, then, FACTORS)), strict=True
    )
    assert astuple(footprint(power, price, first + then, FACTORS)) == pytest.approx([sum(part) for part in parts])


@given(watts, prices, times, st.floats(0, 100))
def test_footprint_is_linear_in_watts_and_price(power: float, price: float, seconds: float, factor: float) -> None:
    scaled = footprint(power * factor, price * factor, seconds, FACTORS)
    expected = [value * factor for value in astuple(footprint(power, price, seconds, FACTORS))]
    assert astuple(scaled) == pytest.approx(expected)


@given(watts, prices, times)
def test_no_part_of_a_footprint_is_negative(power: float, price: float, seconds: float) -> None:
    assert min(astuple(footprint(power, price, seconds, FACTORS))) >= 0


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["active_watts", "price_usd_per_hour", "seconds"])
def test_an_impossible_number_is_refused_by_its_argument_name(name: str, bad: float) -> None:
    arguments = {"active_watts": 1.0, "price_usd_per_hour": 1.0, "seconds": 1.0, name: bad}
    with pytest.raises(ValueError, match=f"^{name} must be"):
        footprint(**arguments, factors=FACTORS)


def test_baseline_time_is_the_first_token_plus_the_rest_at_its_rate() -> None:
    assert baseline_seconds(ttft_s=0.2, tokens_per_s=50, completion_tokens=101) == pytest.approx(2.2)  # 0.2 + 100/50


@pytest.mark.parametrize("tokens", [0, 1])
def test_baseline_time_of_an_answer_of_at_most_one_token_is_the_time_to_first_token(tokens: int) -> None:
    assert baseline_seconds(ttft_s=0.2, tokens_per_s=50, completion_tokens=tokens) == 0.2


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("ttft_s", -0.1),
        ("ttft_s", math.nan),
        ("tokens_per_s", 0.0),
        ("tokens_per_s", math.nan),
        ("completion_tokens", -1),
    ],
)
def test_baseline_time_refuses_impossible_numbers_by_argument_name(name: str, bad: float) -> None:
    arguments = {"ttft_s": 0.1, "tokens_per_s": 50.0, "completion_tokens": 10, name: bad}
    with pytest.raises(ValueError, match=f"^{name} must be"):
        baseline_seconds(**arguments)  # type: ignore[arg-type]
