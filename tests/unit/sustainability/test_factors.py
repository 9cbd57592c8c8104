from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from sustainability import Factors, load_factors
from sustainability.factors import DEFAULT_PATH


@pytest.fixture
def shipped() -> dict[str, dict[str, Any]]:
    content: dict[str, dict[str, Any]] = yaml.safe_load(DEFAULT_PATH.read_text(encoding="utf-8"))
    return content


def _load(content: object, folder: Path) -> Factors:
    path = folder / "factors.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return load_factors(path)


def test_shipped_factors_are_the_documented_default() -> None:
    factors = load_factors()
    assert (factors.water.value, factors.water.unit) == (1.8, "L/kWh")
    assert (factors.co2.value, factors.co2.unit) == (0.39, "kg/kWh")


def test_every_entry_of_the_factor_file_has_a_source_and_a_confidence(shipped: dict[str, dict[str, Any]]) -> None:
    assert set(shipped) == set(Factors.model_fields)
    for name, entry in shipped.items():
        assert entry["source"].strip(), name
        assert entry["confidence"] in {"low", "medium", "high"}, name


@pytest.mark.parametrize("key", ["value", "unit", "source", "confidence"])
def test_an_entry_without_one_of_its_keys_is_refused(
    key: str, shipped: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    del shipped["water"][key]
    with pytest.raises(ValidationError, match=f"water.{key}"):
        _load(shipped, tmp_path)


def test_an_unknown_key_is_refused(shipped: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="pue"):
        _load(shipped | {"pue": shipped["water"]}, tmp_path)


@pytest.mark.parametrize(("key", "bad"), [("value", -1), ("value", float("nan")), ("unit", "gal/kWh"), ("source", "")])
def test_an_impossible_entry_is_refused(
    key: str, bad: object, shipped: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    shipped["water"][key] = bad
    with pytest.raises(ValidationError, match=f"water.{key}"):
        _load(shipped, tmp_path)


def test_factors_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load_factors().water.value = 2
