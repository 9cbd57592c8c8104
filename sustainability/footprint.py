"""Energy, water, CO2 and cost of one answer.

`busy_s` is the answer's share of the engine's busy time (`shares.py`), so the answers of a batch together are charged
for the hardware once. Two figures: the attributed one is of the GPUs in that time alone. The full one adds the idle
time of the warm replica that is billed to the answer, the server around the GPUs, and the site's overhead (PUE).
"""

from __future__ import annotations

from dataclasses import dataclass

from sustainability.factors import Place
from sustainability.number_checks import require_non_negative, require_positive
from sustainability.units import G_PER_KG, SECONDS_PER_HOUR, WH_PER_KWH


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a replica runs on."""

    gpus: float
    """0: a CPU, whose watts are those of its whole server."""
    active_watts: float
    """Of all its GPUs while it computes, W."""
    idle_watts: float
    price_usd_per_hour: float


@dataclass(frozen=True, slots=True)
class Footprint:
    """What an answer used; every field is zero or more."""

    energy_wh: float
    water_l: float
    co2_g: float
    cost_usd: float

    def __add__(self, other: Footprint) -> Footprint:
        """Return both together."""
        return Footprint(
            self.energy_wh + other.energy_wh,
            self.water_l + other.water_l,
            self.co2_g + other.co2_g,
            self.cost_usd + other.cost_usd,
        )


def footprint(hardware: Hardware, busy_s: float, place: Place) -> Footprint:
    """Return the attributed footprint of hardware that is busy for `busy_s`.

    energy_wh = active_watts * busy_s / 3600
           Wh =            W *      s / (s/h)
    water_l   = energy_wh / 1000     * water_l_per_kwh
            L =        Wh / (Wh/kWh) *           L/kWh
    co2_g     = energy_wh / 1000     * server_co2_kg_per_kwh * 1000
            g =        Wh / (Wh/kWh) *                kg/kWh * (g/kg)
    cost_usd  = price_usd_per_hour * busy_s / 3600
          USD =              USD/h *      s / (s/h)

    Water and CO2 have the site's overhead in them, energy has not: it is what a meter at the GPUs would show.
    Raises `ValueError` naming the argument that is negative, NaN or infinite.
    """
    require_non_negative(
        active_watts=hardware.active_watts, price_usd_per_hour=hardware.price_usd_per_hour, busy_s=busy_s
    )
    hours = busy_s / SECONDS_PER_HOUR
    return _of(hardware.active_watts * hours, hardware.price_usd_per_hour * hours, place)


def full_footprint(hardware: Hardware, busy_s: float, idle_s: float, place: Place) -> Footprint:
    """Return the full footprint of an answer.

    energy_wh = (active_watts * busy_s + idle_watts * idle_s + gpus * host_watts * (busy_s + idle_s)) / 3600 * pue
    cost_usd  = price_usd_per_hour * (busy_s + idle_s) / 3600

    Args:
        hardware: of the replica.
        busy_s: the answer's share of its busy time, s.
        idle_s: the replica's idle time that falls to the answer, s.
        place: where it is.

    Raises `ValueError` naming the argument that is negative, NaN or infinite.
    """
    require_non_negative(idle_watts=hardware.idle_watts, idle_s=idle_s, gpus=hardware.gpus)
    busy = footprint(hardware, busy_s, place)
    idle_h = idle_s / SECONDS_PER_HOUR
    host_wh = hardware.gpus * place.host_watts * (busy_s / SECONDS_PER_HOUR + idle_h)
    server_wh = busy.energy_wh + hardware.idle_watts * idle_h + host_wh
    whole = _of(server_wh, busy.cost_usd + hardware.price_usd_per_hour * idle_h, place)
    return Footprint(server_wh * place.pue, whole.water_l, whole.co2_g, whole.cost_usd)


def _of(server_wh: float, cost_usd: float, place: Place) -> Footprint:
    kwh = server_wh / WH_PER_KWH
    return Footprint(
        energy_wh=server_wh,
        water_l=kwh * place.water_l_per_kwh,
        co2_g=kwh * place.server_co2_kg_per_kwh * G_PER_KG,
        cost_usd=cost_usd,
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
