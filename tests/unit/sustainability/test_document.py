"""The worked example of docs/sustainability.md comes out as the application computes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sustainability.factors import EnergySettings, place_of
from sustainability.footprint import Hardware, baseline_seconds, footprint, full_footprint
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
    ):
        assert row in text
