"""Read a profile, shipped here or given as a path, and merge overrides over it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml
from pydantic import ValidationError

from cluster.planner.plan import plan
from cluster.planner.render import render
from cluster.planner.supply import parse
from router.errors import ConfigError
from router.registry import Profile

_HERE = Path(__file__).parent
PLANNED: Final = "plan:"
"""Prefix of a profile's name that is a list of GPUs, as `power-lever profile --gpus` takes it."""
ProfileT = TypeVar("ProfileT", bound=Profile)


def shipped_profiles() -> list[str]:
    """Return the names of the profiles that come with the application."""
    return sorted(path.stem for path in _HERE.glob("*.yaml"))


def load_profile(name: str) -> Profile:
    """Return the profile of that name (`local`, `gpu`) or at that path (`*.yaml`).

    Raises:
        ConfigError: there is no such profile, it is not YAML, or the registry does not allow a value.
    """
    return validate_profile(Profile, read_profile(name), where=f"profile {name}")


def read_profile(name: str) -> dict[str, Any]:
    """Return the raw mapping of a profile, not validated. `plan:L4:1` is what the planner makes for these GPUs.

    Raises:
        ConfigError: there is no such profile, it is not a YAML mapping, or no plan fits these GPUs.
    """
    if name.startswith(PLANNED):
        return dict(yaml.safe_load(render(plan(parse(name.removeprefix(PLANNED), where=f"profile {PLANNED}")))))
    if name.endswith((".yaml", ".yml")):
        return read_yaml(Path(name))
    if name not in shipped_profiles():
        raise ConfigError(
            f"profile: got {name!r}, allowed are auto, {', '.join(shipped_profiles())}, {PLANNED}L4:1 with your GPUs, "
            "or a path to a .yaml"
        )
    return read_yaml(_HERE / f"{name}.yaml")


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Raises:
        ConfigError: the file cannot be read, is not YAML, has a key twice, or holds something else.
    """
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeys)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8: {error.reason} at byte {error.start}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not YAML: {error}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: got {type(raw).__name__}, must be a mapping")
    return raw


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping. YAML forbids it; PyYAML silently takes the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"key {key.value!r} stands twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def validate_profile(kind: type[ProfileT], raw: Mapping[str, Any], where: str) -> ProfileT:
    """Return the mapping as a `Profile` or a subclass.

    Raises:
        ConfigError: it is not valid; the message has one sentence per problem.
    """
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise ConfigError.of(error, kind, where) from error


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `over` merged over it: mappings key by key, anything else (lists too) replaced."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged
