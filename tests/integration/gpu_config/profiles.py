"""The profiles with GPU tiers that this project ships and shows."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import yaml

from router.registry import Profile

ROOT: Final = Path(__file__).parents[3]
FOLDERS: Final = ("cluster/profiles",)
OTHER_SETTINGS: Final = "other settings"
"""In place of a profile's name: its first speculating entry again, with other settings of ours."""


def read(path: Path) -> Profile:
    """Return a profile."""
    return Profile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))


PROFILES: Final = tuple(
    path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).glob("*.yaml"))
    if any(tier.gpu is not None for tier in read(path).tiers.values())
)
