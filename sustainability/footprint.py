"""What one answer costs in energy, water, CO2 and money.

Caveat: given the wall time of one request, these formulas charge the whole GPU to it. Under batching the same
second is then charged once per concurrent request, so the sum over requests overcounts by about the batch size;
power is the tier's figure, not a measurement; PUE, host and idle power are left out. Shares over the batch and
measured watts refine what goes *in* (`seconds`, `active_watts`), so the formulas stay here, in one place.
"""

from __future__ import annotations

from dataclasses import dataclass

from sustainability.checks import require_non_negative, require_positive
from sustainability.factors import Factors
from sustainability.units import G_PER_KG, SECONDS_PER_HOUR, WH_PER_KWH


@dataclass(frozen=True, slots=True)
class Footprint:
    """What an answer cost; every field is zero or more."""

    energy_wh: float
    water_l: float
    co2_g: float
    cost_usd: float


def footprint(active_watts: float, price_usd_per_hour: float, seconds: float, factors: Factors) -> Footprint:
    """Footprint of keeping hardware that draws `active_watts` busy for `seconds`.

    energy_wh = active_watts * seconds / 3600
           Wh =            W *       s / (s/h)
    water_l   = energy_wh / 1000    * factors.water
            L =        Wh / (Wh/kWh) *        L/kWh
    co2_g     = energy_wh / 1000    * factors.co2 * 1000
            g =        Wh / (Wh/kWh) *     kg/kWh * (g/kg)
    cost_usd  = price_usd_per_hour * seconds / 3600
          USD =              USD/h *       s / (s/h)

    Sources: water and CO2 factors as `factors` states them; watts and price from the tier registry.
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
    """Time that hardware with these figures needs for an answer of `completion_tokens`.

    seconds = ttft_s + (completion_tokens - 1) / tokens_per_s
          s =      s +                  tokens / (tokens/s)

    The first token comes at `ttft_s`, so only the others are paced; an answer without tokens still costs `ttft_s`.
    """
    require_non_negative(ttft_s=ttft_s, completion_tokens=completion_tokens)
    require_positive(tokens_per_s=tokens_per_s)
    return ttft_s + max(completion_tokens - 1, 0) / tokens_per_s
