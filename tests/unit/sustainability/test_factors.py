"""Every factor has a source; the settings choose those of one place."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import ValidationError

from sustainability.factors import (
    DEFAULT_ENERGY,
    DEFAULT_PATH,
    EnergySettings,
    Factors,
    Grid,
    Place,
    Site,
    load_factors,
    place_of,
)


@pytest.fixture
def shipped() -> dict[str, dict[str, Any]]:
    content: dict[str, dict[str, Any]] = yaml.safe_load(DEFAULT_PATH.read_text(encoding="utf-8"))
    return content


def _load(content: object, folder: Path) -> Factors:
    path = folder / "factors.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return load_factors(path)


def entries(content: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every factor of the file, with where it stands."""
    if isinstance(content, list):
        return  # list prices
    if "value" in content:
        yield place, content
    else:
        for name, inner in content.items():
            yield from entries(inner, f"{place}.{name}" if place else name)


def test_the_default_is_the_documented_simple_one() -> None:
    place = place_of(DEFAULT_ENERGY)
    assert (place.pue, place.water_l_per_kwh, place.server_co2_kg_per_kwh, place.carbon) == (1.0, 1.8, 0.39, "location")


def test_every_factor_has_a_source_a_year_a_unit_and_a_confidence(shipped: dict[str, dict[str, Any]]) -> None:
    found = dict(entries(shipped))
    assert len(found) == 2 * (len(get_args(Site)) + len(get_args(Grid))) + 4
    for place, entry in found.items():
        assert len(entry["source"].strip()) > 10, place
        assert 2020 <= entry["year"] <= 2026, place
        assert entry["confidence"] in {"low", "medium", "high"}, place


def test_every_list_price_has_a_source_a_day_and_a_confidence() -> None:
    hosted = load_factors().hosted
    assert len({(price.provider, price.model) for price in hosted}) == len(hosted) >= 10
    for price in hosted:
        assert len(price.source) > 10
        assert date(2026, 7, 1) <= price.date <= date(2026, 11, 30), price.model
        assert price.output_usd_per_million >= price.input_usd_per_million > 0, price.model
        assert price.confidence != "high", "none was read on the provider's own page"


def test_the_settings_know_each_site_and_grid_of_the_file(shipped: dict[str, dict[str, Any]]) -> None:
    assert tuple(shipped["sites"]) == get_args(Site)
    assert tuple(shipped["grids"]) == get_args(Grid)


def test_water_and_co2_of_the_us_equal_values_computed_by_hand() -> None:
    place = place_of(EnergySettings(site="us", grid="us"))
    assert place.water_l_per_kwh == pytest.approx(6.688)  # 0.36 + 1.4 * 4.52
    assert place.server_co2_kg_per_kwh == pytest.approx(0.5138)  # 1.4 * 0.367


def test_an_operators_own_overhead_and_contracts_replace_those_of_the_file() -> None:
    place = place_of(EnergySettings(site="aws", grid="france", pue=1.2, market_co2_kg_per_kwh=0.01))
    assert (place.pue, place.carbon) == (1.2, "market")
    assert place.server_co2_kg_per_kwh == pytest.approx(0.012)  # 1.2 * 0.01
    assert place.water_l_per_kwh == pytest.approx(4.822)  # 0.13 + 1.2 * 3.91


@pytest.mark.parametrize("places", [{"site": "simple", "grid": "us"}, {"site": "us"}, {"grid": "world"}])
def test_the_simple_site_goes_with_the_simple_grid_only(places: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="both must be simple, or neither"):
        EnergySettings(**places)


@pytest.mark.parametrize("bad", [{"site": "moon"}, {"pue": 0.9}, {"market_co2_kg_per_kwh": -1}, {"region": "us"}])
def test_a_wrong_setting_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(bad))):
        EnergySettings(**bad)


@pytest.mark.parametrize("key", ["value", "unit", "year", "source", "confidence"])
def test_an_entry_without_one_of_its_keys_is_refused(
    key: str, shipped: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    del shipped["host"][key]
    with pytest.raises(ValidationError, match=f"host.{key}"):
        _load(shipped, tmp_path)


def test_an_unknown_key_is_refused(shipped: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="pue"):
        _load(shipped | {"pue": shipped["host"]}, tmp_path)


@pytest.mark.parametrize(("key", "bad"), [("value", -1), ("value", float("nan")), ("unit", "gal/kWh"), ("source", "")])
def test_an_impossible_entry_is_refused(
    key: str, bad: object, shipped: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    shipped["grids"]["us"]["water"][key] = bad
    with pytest.raises(ValidationError, match=f"water.{key}"):
        _load(shipped, tmp_path)


def test_factors_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load_factors().host.value = 2


def test_a_place_is_of_the_factors_that_it_is_given(shipped: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    shipped["grids"]["us"]["co2"]["value"] = 0.5
    place = Place.of(EnergySettings(site="google", grid="us"), _load(shipped, tmp_path))
    assert place.server_co2_kg_per_kwh == pytest.approx(0.545)  # 1.09 * 0.5
