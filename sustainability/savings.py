"""Savings of an answer against a baseline, losses included."""

from __future__ import annotations

from dataclasses import dataclass

from sustainability.footprint import Footprint


@dataclass(frozen=True, slots=True)
class Savings:
    """Baseline minus actual. A negative value is a loss, and is shown as such."""

    wh: float
    water_l: float
    co2_g: float
    cost_usd: float
    percent: float
    """Energy saved, in percent of the baseline's energy; 0 if the baseline used none."""


def savings(actual: Footprint, baseline: Footprint) -> Savings:
    """Return the difference between an answer's footprint and its footprint on the baseline hardware.

    percent = (baseline.energy_wh - actual.energy_wh) / baseline.energy_wh * 100
          % = (                Wh -               Wh) /                 Wh * 100
    """
    wh = baseline.energy_wh - actual.energy_wh
    return Savings(
        wh=wh,
        water_l=baseline.water_l - actual.water_l,
        co2_g=baseline.co2_g - actual.co2_g,
        cost_usd=baseline.cost_usd - actual.cost_usd,
        percent=wh / baseline.energy_wh * 100 if baseline.energy_wh > 0 else 0.0,
    )
