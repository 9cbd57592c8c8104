"""Energy, water, CO2 and cost of one answer.

`seconds` is the answer's share of the engine's busy time (`shares.py`), so the answers of a batch together are charged
for the hardware once. Power is the tier's figure, not a measurement. PUE, host and idle power are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from sustainability.factors import Factors
from sustainability.number_checks import require_non_negative, require_positive
from sustainability.units import G_PER_KG, SECONDS_PER_HOUR, WH_PER_KWH


@dataclass(frozen=True, slots=True)
class Footprint:
    """What an answer used; every field is zero or more."""

    energy_wh: float
    water_l: float
    co2_g: float
    cost_usd: float


def footprint(active_watts: float, price_usd_per_hour: float, seconds: float, factors: Factors) -> Footprint:
    """Return the footprint of hardware that draws `active_watts` and is busy for `seconds`.

    energy_wh = active_watts * seconds / 3600
           Wh =            W *       s / (s/h)
    water_l   = energy_wh / 1000    * factors.water
            L =        Wh / (Wh/kWh) *        L/kWh
    co2_g     = energy_wh / 1000    * factors.co2 * 1000
            g =        Wh / (Wh/kWh) *     kg/kWh * (g/kg)
    cost_usd  = price_usd_per_hour * seconds / 3600
          USD =              USD/h *       s / (s/h)

    Sources: `factors` names those of the water and CO2 factors; watts and price are from the tier registry.
    Raises `ValueError` naming the argument that is negative, NaN or infinite.
    """
    require_non_negative(active_watts=active_watts, price_usd_per_hour=price_usd_per_hour, seconds=seconds)
    hours = seconds / SECONDS_PER_HOUR
    energy_wh = active_watts * hours
    energy_kwh = energy_wh / WH_PER_KWH
    return Footprint(
        energy_wh=energy_wh,
        water_l=energy_kwh * factors.water.value,
        co2_g=energy_kwh * factors.co2.value * G_PER_KG,
        cost_usd=price_usd_per_hour * hours,
    )


def baseline_seconds(ttft_s: float, tokens_per_s: float, completion_tokens: int) -> float:
    """Return how long hardware with these figures needs for an answer of `completion_tokens`.

    seconds = ttft_s + (completion_tokens - 1) / tokens_per_s
          s =      s +                  tokens / (tokens/s)

    The first token comes at `ttft_s`, so the rate applies to the others only. An answer without tokens takes `ttft_s`.
    """
    require_non_negative(ttft_s=ttft_s, completion_tokens=completion_tokens)
    require_positive(tokens_per_s=tokens_per_s)
    return ttft_s + max(completion_tokens - 1, 0) / tokens_per_s
