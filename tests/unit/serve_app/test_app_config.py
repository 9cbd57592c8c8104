"""The config: environment over `serve_config.yaml` over profile, and errors before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from router.errors import ConfigError
from serve_app.config import AppConfig, load_config


def config(args: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None) -> AppConfig:
    return load_config({"profile": "local"} | dict(args or {}), env or {}, not_asked)


def not_asked() -> tuple[str, str]:
    raise AssertionError("the profile was named, nothing is to be chosen")


def refusal(args: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as error:
        config(args, env)
    return str(error.value)


def test_auto_calls_choose_profile_and_keeps_its_reason() -> None:
    chosen = load_config({"profile": "auto"}, {}, lambda: ("gpu", "the cluster has 4 GPUs"))
    assert (chosen.profile, chosen.profile_reason) == ("gpu", "the cluster has 4 GPUs")
    assert chosen.tiers["eco"].gpu == "L4"


def test_auto_is_the_default() -> None:
    assert load_config({}, {}, lambda: ("local", "no GPU")).profile == "local"


def test_a_named_profile_is_used_as_it_is() -> None:
    assert (config().profile, config().profile_reason) == ("local", "named in serve_config.yaml")


def test_yaml_beats_the_profile_key_by_key() -> None:
    plain, changed = config(), config({"tiers": {"eco": {"active_watts": 12.5}}, "limits": {"max_sequences": 9}})
    assert changed.tiers["eco"].active_watts == 12.5
    assert changed.tiers["eco"].chain == plain.tiers["eco"].chain
    assert changed.tiers["ultra"] == plain.tiers["ultra"]
    assert changed.limits.max_sequences == 9
    assert changed.limits.max_body_bytes == plain.limits.max_body_bytes


def test_a_bare_off_in_yaml_is_the_word_in_every_key_that_may_be_off() -> None:
    text = "{auth: {mode: off}, agent: {mode: off}, tiers: {eco: {escalate: off}, ultra: {escalate: 'off'}}}"
    read = config(yaml.safe_load(text))
    assert (read.auth.mode, read.agent.mode) == ("off", "off")
    assert {name: tier.escalate for name, tier in read.tiers.items()} == {
        "eco": "off",
        "balanced": "advise",
        "performance": "advise",
        "ultra": "off",
    }


def test_a_bare_on_in_yaml_is_no_mode() -> None:
    assert "agent.mode: Input should be 'off', 'auto'" in refusal(yaml.safe_load("agent: {mode: on}"))


def test_the_environment_beats_yaml() -> None:
    args = {"inference_mode": "real", "demo_mode": False, "models_dir": "/from/yaml"}
    env = {"INFERENCE_MODE": "mock", "DEMO_MODE": "1", "MODELS_DIR": "/from/env"}
    changed = config(args, env)
    assert (changed.inference_mode, changed.demo_mode, changed.models_dir) == ("mock", True, "/from/env")


def test_yaml_is_kept_if_the_environment_sets_nothing() -> None:
    changed = config({"inference_mode": "mock", "demo_mode": True, "models_dir": "/from/yaml"})
    assert (changed.inference_mode, changed.demo_mode, changed.models_dir) == ("mock", True, "/from/yaml")


def test_an_empty_variable_sets_nothing() -> None:
    changed = config({"inference_mode": "mock", "demo_mode": True}, {"INFERENCE_MODE": "", "DEMO_MODE": ""})
    assert (changed.inference_mode, changed.demo_mode) == ("mock", True)


def test_demo_mode_0_overrides_yamls_demo_mode() -> None:
    assert config({"demo_mode": True}, {"DEMO_MODE": "0"}).demo_mode is False


def test_the_default_models_folder_is_an_absolute_path() -> None:
    assert Path(config().models_dir).is_absolute()


@pytest.mark.parametrize("value", ["yes", "true", "2", "01"])
def test_demo_mode_must_be_0_or_1(value: str) -> None:
    assert refusal(env={"DEMO_MODE": value}) == f"DEMO_MODE: got {value!r}, must be 0 or 1"


def test_an_unknown_inference_mode_names_the_allowed_ones() -> None:
    message = refusal(env={"INFERENCE_MODE": "fake"})
    assert "inference_mode" in message
    assert "'real' or 'mock'" in message
    assert "got 'fake'" in message


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"limit": {}}, "limit: unknown key, allowed are description, tiers, models, baseline, auto, energy, profile"),
        ({"limits": {"max_body": 1}}, "limits.max_body: unknown key, allowed are max_body_bytes, max_prompt_chars"),
        ({"tiers": {"eco": {"watts": 1}}}, "tiers.eco.watts: unknown key, allowed are power, gpu, gpus"),
        ({"tiers": {"huge": {}}}, "tiers.huge"),
    ],
)
def test_an_unknown_key_is_named_with_the_allowed_ones(args: dict[str, Any], expected: str) -> None:
    message = refusal(args)
    assert message.startswith("config (profile local): ")
    assert expected in message


def test_an_unknown_profile_names_the_shipped_ones() -> None:
    message = refusal({"profile": "cloud"})
    assert "got 'cloud'" in message
    assert "auto, gpu, local" in message


def test_a_profile_file_that_is_missing_is_named() -> None:
    assert "missing.yaml: cannot be read: No such file or directory" in refusal({"profile": "missing.yaml"})


def test_a_profile_that_is_not_a_string_is_refused() -> None:
    assert refusal({"profile": 3}) == "config: profile: got 3, must be auto, a profile's name or a path"


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        config().demo_mode = True
