"""Where the router's tools get their registry and state outside of the ingress: a profile, or a running application."""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import ValidationError

from router.agent.tools import ToolContext
from router.errors import ConfigError
from router.observation import Observation
from router.registry import Profile


def profile_context(path: Path) -> ToolContext:
    """Return the registry in a profile's YAML, with no tier running.

    Raises:
        ConfigError: it cannot be read, or is no profile.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    try:
        return ToolContext(Profile.model_validate(raw), Observation())
    except ValidationError as error:
        raise ConfigError.of(error, Profile, str(path)) from error
