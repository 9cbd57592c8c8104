"""The factor file: what water, CO2 and overhead a kWh of a GPU has, by place, each value with its unit and source."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

DEFAULT_PATH = Path(__file__).with_name("factors.yaml")

Site = Literal["simple", "us", "world", "aws", "azure", "google"]
Grid = Literal["simple", "us", "world", "france", "sweden"]
CarbonMethod = Literal["location", "market"]
Confidence = Literal["low", "medium", "high"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Factor(_Frozen):
    """One sourced number."""

    value: float = Field(ge=0, allow_inf_nan=False, description="The factor, in `unit`.")
    unit: str = Field(description="Unit of `value`.")
    year: int = Field(ge=2015, le=2100, description="Year that the value is of.")
    source: str = Field(min_length=1, description="Where the value comes from, and its weaknesses.")
    confidence: Confidence = Field(description="How much to trust the value.")


class Water(Factor):
    """Water used per energy."""

    unit: Literal["L/kWh"] = Field(description="Unit of `value`; the formulas convert from no other unit.")


class Co2(Factor):
    """CO2 emitted per energy."""

    unit: Literal["kg/kWh"] = Field(description="Unit of `value`; the formulas convert from no other unit.")


class Ratio(Factor):
    """A number without a unit."""

    unit: Literal["ratio"] = Field(description="Unit of `value`.")


class Watts(Factor):
    """Power."""

    unit: Literal["W"] = Field(description="Unit of `value`.")


class HostedPrice(_Frozen):
    """List price of a hosted model, for comparison."""

    provider: str = Field(min_length=1, description="Who serves it.")
    model: str = Field(min_length=1, description="As the provider calls it.")
    input_usd_per_million: float = Field(ge=0, allow_inf_nan=False, description="USD per 10^6 prompt tokens.")
    output_usd_per_million: float = Field(gt=0, allow_inf_nan=False, description="USD per 10^6 output tokens.")
    date: datetime.date = Field(description="Day on which the price was read, or since which it holds.")
    source: str = Field(min_length=1, description="Where the price comes from.")
    confidence: Confidence = Field(description="How much to trust the price.")


class SiteFactors(_Frozen):
    """A data center."""

    pue: Ratio = Field(description="Energy of the whole site over that of its servers.")
    water: Water = Field(description="Litres evaporated on site per kWh of its servers.")


class GridFactors(_Frozen):
    """Where the electricity is used."""

    water: Water = Field(description="Litres used at the power plants per kWh.")
    co2: Co2 = Field(description="Kilograms of CO2 per kWh, location-based.")


class Factors(_Frozen):
    """The whole file."""

    sites: dict[Site, SiteFactors] = Field(description="Data centers by name.")
    grids: dict[Grid, GridFactors] = Field(description="Grids by name.")
    host: Watts = Field(description="Of a server without its GPUs, for each of them.")
    watts_low: Ratio = Field(description="Lowest real draw, as a share of a tier's modelled `active_watts`.")
    watts_high: Ratio = Field(description="Highest real draw, as a share of a tier's modelled `active_watts`.")
    hosted: tuple[HostedPrice, ...] = Field(description="List prices of hosted models.")
    sensor_error: Ratio = Field(description="Error of a GPU's measured energy, either way, as a share of it.")


class EnergySettings(_Frozen):
    """Where the GPUs are."""

    site: Site = Field(default="simple", description="Data center whose overhead (PUE) and water count.")
    grid: Grid = Field(default="simple", description="Grid whose CO2 and water count.")
    pue: float | None = Field(
        default=None, ge=1, le=5, description="Your site's energy over that of its servers; null: the site's."
    )
    market_co2_kg_per_kwh: float | None = Field(
        default=None,
        ge=0,
        le=5,
        description="CO2 by your electricity contracts (market-based), kg/kWh; null: the grid's (location-based).",
    )

    @model_validator(mode="after")
    def _of_one_kind(self) -> EnergySettings:
        # The simple site's litres have the power plants' in them.
        if (self.site == "simple") != (self.grid == "simple"):
            raise ValueError(
                f"site is {self.site!r} and grid is {self.grid!r}: both must be simple, or neither, as the simple "
                "site's water has that of the power plants in it"
            )
        return self


DEFAULT_ENERGY = EnergySettings()


@dataclass(frozen=True, slots=True)
class Place:
    """The factors that hold for one cluster."""

    pue: float
    """Energy of the whole site over that of its servers."""
    site_water_l_per_kwh: float
    """Evaporated on site, per kWh of servers."""
    grid_water_l_per_kwh: float
    """Used at the power plants, per kWh of electricity."""
    co2_kg_per_kwh: float
    """Per kWh of electricity."""
    carbon: CarbonMethod
    """Whether that follows the grid or the operator's contracts."""
    host_watts: float
    """Of a server without its GPUs, for each of them."""
    watts_low: float
    watts_high: float
    """Range of a GPU's real draw, as a share of its modelled watts."""
    sensor_error: float
    """Error of a GPU's measured energy, either way, as a share of it."""

    @classmethod
    def of(cls, settings: EnergySettings, factors: Factors) -> Place:
        """Return the factors that the settings choose."""
        site, grid, market = factors.sites[settings.site], factors.grids[settings.grid], settings.market_co2_kg_per_kwh
        return cls(
            pue=site.pue.value if settings.pue is None else settings.pue,
            site_water_l_per_kwh=site.water.value,
            grid_water_l_per_kwh=grid.water.value,
            co2_kg_per_kwh=grid.co2.value if market is None else market,
            carbon="location" if market is None else "market",
            host_watts=factors.host.value,
            watts_low=factors.watts_low.value,
            watts_high=factors.watts_high.value,
            sensor_error=factors.sensor_error.value,
        )

    @property
    def water_l_per_kwh(self) -> float:
        """Per kWh of servers: on site, and at the power plants for all of the site (arXiv 2304.03271)."""
        return self.site_water_l_per_kwh + self.pue * self.grid_water_l_per_kwh

    @property
    def server_co2_kg_per_kwh(self) -> float:
        """Per kWh of servers, with the site's overhead."""
        return self.pue * self.co2_kg_per_kwh


@cache
def load_factors(path: Path = DEFAULT_PATH) -> Factors:
    """Read a factor file. Raises pydantic's `ValidationError` for an unknown key, a missing source or a wrong unit."""
    content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    return Factors.model_validate(content)


@cache
def place_of(settings: EnergySettings) -> Place:
    """Return the shipped factors that the settings choose."""
    return Place.of(settings, load_factors())
