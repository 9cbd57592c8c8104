"""Which mode is meant."""

from __future__ import annotations

from typing import get_args

import pytest
from anthropic.types import ModelParam

from router.agent.settings import AgentSettings, active_mode


@pytest.mark.parametrize(
    ("mode", "has_key", "mock", "meant"),
    [
        ("auto", True, False, "single_shot"),
        ("auto", False, False, None),
        ("auto", True, True, None),
        ("off", True, False, None),
        ("single_shot", False, True, "single_shot"),
        ("multi_turn", True, False, "multi_turn"),
        ("agent_sdk", True, False, "agent_sdk"),
    ],
)
def test_auto_needs_a_key_and_real_engines_and_a_named_mode_is_kept(
    mode: str, has_key: bool, mock: bool, meant: str | None
) -> None:
    settings = AgentSettings.model_validate({"mode": mode})
    assert active_mode(settings, has_key=has_key, mock=mock) == meant


def test_the_default_model_is_one_that_the_installed_sdk_knows() -> None:
    known = {name for arm in get_args(ModelParam) for name in get_args(arm)}
    assert AgentSettings().model in known
