"""The worked example of docs/sustainability.md comes out as the application computes it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from sustainability.cards import SILENT_S
from sustainability.factors import EnergySettings, place_of
from sustainability.footprint import Hardware, baseline_seconds, footprint, full_footprint
from sustainability.measured import SETTLE_S, EnergyLedger
from sustainability.savings import savings

DOCUMENT = Path(__file__).parents[3] / "docs" / "sustainability.md"
L4, H100 = Hardware(1, 72, 11, 0.805), Hardware(1, 564, 0, 6.88)
BUSY_S, IDLE_S, BATCH = 1.25, 1.25, 4


def documented() -> dict[str, float]:
    """The results of the example's table."""
    example = DOCUMENT.read_text(encoding="utf-8").partition("## One example")[2]
    return {name: float(result) for name, result in re.findall(r"^\| `(\S+)` \|.*\| ([\d.]+) \|$", example, re.M)}


def test_every_result_of_the_example_is_what_the_formulas_give() -> None:
    place = place_of(EnergySettings(site="us", grid="us"))
    used = footprint(L4, BUSY_S, place)
    full = full_footprint(L4, BUSY_S, IDLE_S, place)
    instead_s = baseline_seconds(0.05, 100, 201) / BATCH
    saved = savings(used, footprint(H100, instead_s, place))
    computed = {
        "energy.wh": used.energy_wh,
        "water_l": used.water_l,
        "co2_g": used.co2_g,
        "cost_usd": used.cost_usd,
        "energy.full_wh": full.energy_wh,
        "full.cost_usd": full.cost_usd,
        "savings.counterfactual.busy_s": instead_s,
        "savings.wh": saved.wh,
        "savings.percent": saved.percent,
    }
    ledger = EnergyLedger()
    ledger.observe(1200.0, 160.0, 20.0, 10.0)
    ledger._paid_j, ledger._paid_s = 1130.0, 18.75
    owed_j = ledger.owed_j
    bill = ledger.bill(BUSY_S, IDLE_S, 20.0)
    assert bill is not None
    assert bill.idle_j is not None
    measured = replace(L4, active_watts=bill.busy_j / BUSY_S, idle_watts=bill.idle_j / IDLE_S)
    wh = footprint(measured, BUSY_S, place).energy_wh
    computed |= {
        "owed": owed_j,
        "busy_j": bill.busy_j,
        "measured.energy.wh": wh,
        "measured.energy.range.low": wh * (1 - place.sensor_error),
        "measured.energy.range.high": wh * (1 + place.sensor_error),
        "measured.energy.full_wh": full_footprint(measured, BUSY_S, IDLE_S, place).energy_wh,
    }
    assert documented() == pytest.approx(computed, rel=1e-4)


def test_the_factors_in_the_document_are_those_of_the_file() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    simple, us = place_of(EnergySettings()), place_of(EnergySettings(site="us", grid="us"))
    for row in (
        f"| PUE | {simple.pue:g} | {us.pue:g} |",
        f"| water on site, L/kWh | {simple.site_water_l_per_kwh:g}, power plants included |"
        f" {us.site_water_l_per_kwh:g} |",
        f"| water at the power plants, L/kWh | - | {us.grid_water_l_per_kwh:g} |",
        f"| CO2, kg/kWh | {simple.co2_kg_per_kwh:g} | {us.co2_kg_per_kwh:g} |",
        f"{us.host_watts:g} W for each GPU",
        f"{us.watts_low:g} to {us.watts_high:g} of them",
        f"{100 * us.sensor_error:g}% either way",
        f"over {SETTLE_S:g} s of busy time",
        f"silent for {SILENT_S:g} s",
    ):
        assert row in text
