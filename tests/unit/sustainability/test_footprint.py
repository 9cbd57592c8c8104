"""Footprints equal values computed by hand, add up, and are never negative."""

import math
from dataclasses import astuple, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sustainability.factors import DEFAULT_ENERGY, EnergySettings, place_of
from sustainability.footprint import Footprint, Hardware, baseline_seconds, footprint, full_footprint

SIMPLE = place_of(DEFAULT_ENERGY)
US = place_of(EnergySettings(site="us", grid="us"))
L4 = Hardware(gpus=1, active_watts=72, idle_watts=11, price_usd_per_hour=0.805)
H100 = Hardware(gpus=1, active_watts=700, idle_watts=105, price_usd_per_hour=6.88)
watts = st.floats(0, 10_000)
prices = st.floats(0, 1_000)
times = st.floats(0, 1e6)
hardware = st.builds(Hardware, st.floats(0, 8), watts, watts, prices)


def test_an_hour_of_a_700_watt_gpu_has_the_footprint_worked_out_by_hand() -> None:
    result = footprint(H100, 3600, SIMPLE)
    assert result.energy_wh == pytest.approx(700)  # 700 W * 1 h
    assert result.water_l == pytest.approx(1.26)  # 0.7 kWh * 1.8 L/kWh
    assert result.co2_g == pytest.approx(273)  # 0.7 kWh * 0.39 kg/kWh * 1000 g/kg
    assert result.cost_usd == pytest.approx(6.88)


def test_five_seconds_of_an_l4_have_the_footprint_worked_out_by_hand() -> None:
    result = footprint(L4, 5, SIMPLE)
    assert result.energy_wh == pytest.approx(0.1)  # 72 W * 5 s / 3600 s/h
    assert result.water_l == pytest.approx(0.00018)  # 0.0001 kWh * 1.8 L/kWh
    assert result.co2_g == pytest.approx(0.039)  # 0.0001 kWh * 390 g/kWh
    assert result.cost_usd == pytest.approx(0.00111805, rel=1e-5)  # 0.805 USD/h * 5/3600 h


def test_the_full_footprint_in_the_us_is_the_one_worked_out_by_hand() -> None:
    # 10 s busy, 20 s idle: 720 J + 220 J + 150 W * 30 s = 5440 J = 1.51111 Wh at the server.
    result = full_footprint(L4, 10, 20, US)
    assert result.energy_wh == pytest.approx(1.51111 * 1.4, rel=1e-5)
    assert result.water_l == pytest.approx(1.51111 / 1000 * (0.36 + 1.4 * 4.52), rel=1e-5)
    assert result.co2_g == pytest.approx(1.51111 * 1.4 * 0.367, rel=1e-5)
    assert result.cost_usd == pytest.approx(0.805 * 30 / 3600)


def test_a_cpu_has_no_host_beside_it() -> None:
    cpu = replace(L4, gpus=0)
    assert full_footprint(cpu, 10, 0, SIMPLE) == footprint(cpu, 10, SIMPLE)


def test_no_time_costs_nothing() -> None:
    assert footprint(H100, 0, SIMPLE) == full_footprint(H100, 0, 0, US) == Footprint(0, 0, 0, 0)


@given(hardware, times, times)
def test_footprints_of_two_times_add_up(gpu: Hardware, first: float, then: float) -> None:
    parts = zip(astuple(footprint(gpu, first, US)), astuple(footprint(gpu, then, US)), strict=True)
    assert astuple(footprint(gpu, first + then, US)) == pytest.approx([sum(part) for part in parts])


@given(hardware, times, times)
def test_the_full_footprint_is_never_less_than_the_attributed_one_and_none_is_negative(
    gpu: Hardware, busy_s: float, idle_s: float
) -> None:
    pairs = zip(astuple(footprint(gpu, busy_s, US)), astuple(full_footprint(gpu, busy_s, idle_s, US)), strict=True)
    assert all(0 <= attributed <= full * (1 + 1e-12) for attributed, full in pairs)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["active_watts", "price_usd_per_hour", "busy_s", "idle_watts", "idle_s", "gpus"])
def test_an_impossible_number_is_refused_by_its_argument_name(name: str, bad: float) -> None:
    given_times = {"busy_s": 1.0, "idle_s": 1.0}
    gpu = L4
    if name in given_times:
        given_times[name] = bad
    else:
        gpu = replace(L4, **{name: bad})
    with pytest.raises(ValueError, match=f"^{name} must be"):
        full_footprint(gpu, place=SIMPLE, **given_times)


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
