"""Profiles: YAML tier registries, shipped here or given as a path, with overrides merged over them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from router.errors import ConfigError
from router.registry import Profile

_HERE = Path(__file__).parent
ProfileT = TypeVar("ProfileT", bound=Profile)


def shipped_profiles() -> list[str]:
    """Names of the profiles that come with the application."""
    return sorted(path.stem for path in _HERE.glob("*.yaml"))


def load_profile(name: str) -> Profile:
    """The profile of that name (`local`, `gpu`) or at that path (`*.yaml`).

    Raises:
        ConfigError: no such profile, not YAML, or a value that the registry does not allow.
    """
    return validate_profile(Profile, read_profile(name), where=f"profile {name}")


def read_profile(name: str) -> dict[str, Any]:
    """The raw mapping of a profile, not validated.

    Raises:
        ConfigError: no such profile, or not a YAML mapping.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else _HERE / f"{name}.yaml"
    if not path.is_file():
        raise ConfigError(
            f"profile: got {name!r}, allowed are auto, {', '.join(shipped_profiles())} or a path to a .yaml"
        )
    return read_yaml(path)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that must hold a mapping.

    Raises:
        ConfigError: the file cannot be read, is not YAML or not a mapping.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not YAML: {error}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: got {type(raw).__name__}, must be a mapping")
    return raw


def validate_profile(kind: type[ProfileT], raw: Mapping[str, Any], where: str) -> ProfileT:
    """The mapping as `Profile` or a class derived from it.

    Raises:
        ConfigError: with one sentence per problem.
    """
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise ConfigError.of(error, kind, where) from error


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`: mappings are merged key by key, anything else (lists too) is replaced."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else value
    return merged
