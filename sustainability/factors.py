"""The factor file: water and CO2 per kWh, each value with its unit, source and confidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

DEFAULT_PATH = Path(__file__).with_name("factors.yaml")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Factor(_Frozen):
    """One sourced number."""

    value: float = Field(ge=0, allow_inf_nan=False, description="The factor, in `unit`.")
    unit: str = Field(description="Unit of `value`.")
    source: str = Field(min_length=1, description="Where the value comes from, and its weaknesses.")
    confidence: Literal["low", "medium", "high"] = Field(description="How much to trust the value.")


class WaterFactor(Factor):
    """Water used per energy."""

    unit: Literal["L/kWh"] = Field(description="Unit of `value`; the formulas convert from no other unit.")


class Co2Factor(Factor):
    """CO2 emitted per energy."""

    unit: Literal["kg/kWh"] = Field(description="Unit of `value`; the formulas convert from no other unit.")


class Factors(_Frozen):
    """All factors that a footprint needs."""

    water: WaterFactor = Field(description="Litres of water per kWh.")
    co2: Co2Factor = Field(description="Kilograms of CO2 per kWh.")


def load_factors(path: Path = DEFAULT_PATH) -> Factors:
    """Read a factor file. Raises pydantic's `ValidationError` for an unknown key, a missing source or a wrong unit."""
    content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    return Factors.model_validate(content)
