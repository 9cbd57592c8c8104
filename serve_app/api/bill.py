"""The bill of an answer: what its parts took of energy, water, CO2 and money, each on the hardware of its tier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from router.registry import Profile, Tier, TierName
from serve_app.engine.interface import Finished, Leg
from sustainability.factors import Place, place_of
from sustainability.footprint import Footprint, Hardware, footprint, full_footprint
from sustainability.measured import NO_METER, Energy
from sustainability.units import SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True)
class Bill:
    """Of one answer."""

    used: Footprint
    """Of the GPUs, in the answer's share of their busy time."""
    full: Footprint
    """With what stands around them, and the idle time that falls to the answer."""
    busy_s: float
    range_wh: dict[str, float] | None
    """From `low` to `high`: what the GPUs may really have drawn. None: there are none."""
    source: Literal["measured", "modelled"]
    """Where `used` has its energy from."""
    reason: str | None
    """Why it was not measured."""
    legs: list[dict[str, Any]]
    """The parts, each with its share of `used`."""


def bill_of(profile: Profile, last: TierName, finished: Finished, legs: Sequence[Leg], place: Place) -> Bill:
    """Return the bill.

    Args:
        profile: watts and prices of the tiers.
        last: tier that ended the answer.
        finished: what its engine counted.
        legs: which replica gave which part; none is one.
        place: where the replicas are.
    """
    tier = profile.tiers[last]
    hardware = _measured(tier, finished)
    used = footprint(hardware, finished.busy_s, place)
    full = full_footprint(hardware, finished.busy_s, finished.idle_s, place)
    ranges = [_range_wh(tier, finished.busy_s, finished.energy, place)]
    # The parts of a tier that another one took over from. When it stopped, nobody asked it what it had measured.
    earlier = [(profile.tiers[leg.tier], leg) for leg in legs if leg.tier != last]
    for theirs, leg in earlier:
        used += footprint(_modelled(theirs), leg.busy_s, place)
        full += full_footprint(_modelled(theirs), leg.busy_s, 0.0, place)
        ranges.append(_range_wh(theirs, leg.busy_s, NO_METER, place))
    return Bill(
        used=used,
        full=full,
        busy_s=finished.busy_s + sum(leg.busy_s for _, leg in earlier),
        range_wh={end: sum(one[end] for one in ranges) for end in ("low", "high")} if tier.gpus else None,
        source="modelled" if finished.energy.busy_j is None or earlier else "measured",
        reason=_why_modelled(tier, finished, is_shared=bool(earlier)),
        legs=[_leg(leg, hardware if leg.tier == last else _modelled(profile.tiers[leg.tier]), place) for leg in legs],
    )


def unbilled_leg(leg: Leg, profile: Profile) -> tuple[dict[str, Any], Footprint]:
    """Return the data of a part that is on no bill, as it would be there, and what it took."""
    hardware, place = _modelled(profile.tiers[leg.tier]), place_of(profile.energy)
    return _leg(leg, hardware, place), footprint(hardware, leg.busy_s, place)


def _leg(leg: Leg, hardware: Hardware, place: Place) -> dict[str, Any]:
    """Return the data of one part, with the energy and the cost of its share."""
    used = footprint(hardware, leg.busy_s, place)
    figures = {"busy_s": round(leg.busy_s, 6), "energy_wh": used.energy_wh, "cost_usd": used.cost_usd}
    return leg._asdict() | figures


def _modelled(tier: Tier) -> Hardware:
    return Hardware(tier.gpus, tier.active_watts, tier.idle_watts, tier.price_usd_per_hour)


def _measured(tier: Tier, finished: Finished) -> Hardware:
    """Return what the answer ran on: its watts as they were measured for it, else the tier's."""
    energy, hardware = finished.energy, _modelled(tier)
    if energy.busy_j is not None and finished.busy_s > 0:
        hardware = replace(hardware, active_watts=energy.busy_j / finished.busy_s)
    if energy.idle_j is not None and finished.idle_s > 0:
        hardware = replace(hardware, idle_watts=energy.idle_j / finished.idle_s)
    return hardware


def _why_modelled(tier: Tier, finished: Finished, *, is_shared: bool) -> str | None:
    if finished.energy.busy_j is not None:
        return "another tier began the answer, and its part was not measured" if is_shared else None
    return finished.energy.reason or ("no engine with a meter" if tier.gpus else "no GPU: a CPU has no energy counter")


def _range_wh(tier: Tier, busy_s: float, measured: Energy, place: Place) -> dict[str, float]:
    """Return what the GPUs may really have drawn, Wh.

    Measured: by the error of their sensors. Modelled: by how far GPUs are from their modelled watts, and at most their
    power limit.
    """
    if measured.busy_j is not None:
        wh = measured.busy_j / SECONDS_PER_HOUR
        return {"low": wh * (1 - place.sensor_error), "high": wh * (1 + place.sensor_error)}
    high_watts = tier.active_watts * place.watts_high
    if tier.limit_watts is not None:
        high_watts = max(tier.active_watts, min(high_watts, tier.limit_watts))
    hours = busy_s / SECONDS_PER_HOUR
    return {"low": tier.active_watts * place.watts_low * hours, "high": high_watts * hours}
