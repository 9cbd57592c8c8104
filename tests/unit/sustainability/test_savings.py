from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sustainability.factors import DEFAULT_ENERGY, place_of
from sustainability.footprint import Footprint, Hardware, footprint
from sustainability.savings import savings

amounts = st.floats(0, 1e6)
footprints = st.builds(Footprint, amounts, amounts, amounts, amounts)


def test_an_l4_against_an_h100_saves_what_was_worked_out_by_hand() -> None:
    place = place_of(DEFAULT_ENERGY)
    actual = footprint(Hardware(1, 72, 11, 0.805), 10, place)  # 0.2 Wh
    baseline = footprint(Hardware(1, 700, 105, 6.88), 5, place)  # 0.9722 Wh
    saved = savings(actual, baseline)
    assert saved.wh == pytest.approx(0.772222, rel=1e-5)  # 3500/3600 - 720/3600
    assert saved.water_l == pytest.approx(0.00139, rel=1e-5)  # 0.000772222 kWh * 1.8
    assert saved.co2_g == pytest.approx(0.301167, rel=1e-5)  # 0.000772222 kWh * 390
    assert saved.cost_usd == pytest.approx((34.4 - 8.05) / 3600)
    assert saved.percent == pytest.approx(100 * 2780 / 3500)


def test_a_loss_is_shown_as_negative() -> None:
    saved = savings(actual=Footprint(3, 3, 3, 3), baseline=Footprint(2, 2, 2, 2))
    assert astuple(saved) == (-1, -1, -1, -1, -50)


def test_percent_against_a_baseline_without_energy_is_zero() -> None:
    assert savings(actual=Footprint(1, 1, 1, 1), baseline=Footprint(0, 0, 0, 0)).percent == 0


@given(footprints, footprints)
def test_actual_and_savings_add_up_to_the_baseline(actual: Footprint, baseline: Footprint) -> None:
    saved = astuple(savings(actual, baseline))[:4]
    total = [cost + gain for cost, gain in zip(astuple(actual), saved, strict=True)]
    assert total == pytest.approx(astuple(baseline), abs=1e-6)


@given(footprints, footprints)
def test_percent_is_at_most_a_hundred(actual: Footprint, baseline: Footprint) -> None:
    assert savings(actual, baseline).percent <= 100


@given(footprints)
def test_an_answer_as_costly_as_the_baseline_saves_nothing(actual: Footprint) -> None:
    assert astuple(savings(actual, actual)) == (0, 0, 0, 0, 0)
