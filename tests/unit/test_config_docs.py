"""Every setting is described where it is defined, and every environment variable in the docs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from cluster.autoscaling import ScalingSettings
from router.agent.settings import AgentPrices, AgentSettings
from router.registry import AutoSettings, Baseline, ChainEntry, ModelSource, Profile, Replicas, Speculation, Tier
from router.request import Constraints, InferenceRequest, Message
from router.spec_params import SpecParams
from serve_app.auth.keys import KeyLimits
from serve_app.auth.settings import AuthSettings
from serve_app.config import AppConfig, IngressSettings, Limits, StubSettings
from sustainability.factors import (
    Co2,
    EnergySettings,
    Factor,
    Factors,
    GridFactors,
    HostedPrice,
    Ratio,
    SiteFactors,
    Water,
    Watts,
)

SETTINGS = Path(__file__).parents[2] / "docs" / "settings.md"
CONFIG_CLASSES: tuple[type[BaseModel], ...] = (
    AppConfig,
    Profile,
    Tier,
    Replicas,
    ChainEntry,
    Speculation,
    ModelSource,
    Baseline,
    AutoSettings,
    Limits,
    StubSettings,
    IngressSettings,
    AuthSettings,
    KeyLimits,
    ScalingSettings,
    AgentSettings,
    AgentPrices,
    InferenceRequest,
    SpecParams,
    Constraints,
    Message,
    Factor,
    Water,
    Co2,
    Ratio,
    Watts,
    SiteFactors,
    GridFactors,
    HostedPrice,
    Factors,
    EnergySettings,
)


@pytest.mark.parametrize("kind", CONFIG_CLASSES, ids=lambda kind: kind.__name__)
def test_every_field_is_described(kind: type[BaseModel]) -> None:
    assert kind.model_fields
    assert [name for name, field in kind.model_fields.items() if not field.description] == []


@pytest.mark.parametrize("kind", CONFIG_CLASSES, ids=lambda kind: kind.__name__)
def test_every_config_is_frozen_and_refuses_unknown_keys(kind: type[BaseModel]) -> None:
    assert kind.model_config.get("frozen") is True
    assert kind.model_config.get("extra") == "forbid"


def models_in(annotation: Any) -> set[type[BaseModel]]:
    """Model classes named anywhere in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    return {kind for argument in get_args(annotation) for kind in models_in(argument)}


def test_the_list_above_is_complete() -> None:
    found, ahead = set[type[BaseModel]](), set[type[BaseModel]]((AppConfig, InferenceRequest, Factors))
    while ahead:
        found |= ahead
        inner = {
            kind for outer in ahead for field in outer.model_fields.values() for kind in models_in(field.annotation)
        }
        ahead = inner - found
    assert len(found) > 10
    # The controller's settings have a test of their own, which holds more.
    elsewhere = {kind for kind in found if kind.__module__ == "serve_app.speculation.settings"}
    assert elsewhere
    assert found - elsewhere <= set(CONFIG_CLASSES)


@pytest.mark.parametrize("variable", ["INFERENCE_MODE", "DEMO_MODE", "MODELS_DIR"])
def test_every_environment_variable_is_in_the_docs(variable: str) -> None:
    assert variable in SETTINGS.read_text(encoding="utf-8")
