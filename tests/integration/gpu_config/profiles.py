"""The entries with GPUs that this project ships and shows, and on which pretended cards they are tried."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

import yaml

from cluster.catalogue.types import catalogue
from cluster.profiles.reading import PLANNED, load_profile
from router.registry import ChainEntry, Profile, Tier

ROOT: Final = Path(__file__).parents[3]
SHIPPED: Final = ROOT / "cluster/profiles/gpu.yaml"
EXAMPLES: Final = tuple(sorted((ROOT / "docs/profiles").glob("*.yaml")))
PLANS: Final = (f"{PLANNED}B200:8", f"{PLANNED}RTX-PRO-6000:1")
"""For cards that no example has."""
ODD: Final = Path(__file__).with_name("odd.yaml")
OTHER_SETTINGS: Final = "other settings"
"""In place of a profile's name: its first speculating entry again, with other settings of ours."""
CAPABILITIES: Final = ("8.0", "8.6", "8.9", "9.0", "10.0", "12.0")
ODD_ON: Final = "9.0"
"""The card on which the odd entries are tried."""

Key = tuple[str, str, str]
"""Profile, tier, chain entry."""


@cache
def entries(capability: str) -> dict[Key, tuple[Tier, ChainEntry]]:
    """Return the shipped profile's entries, on every card, and those of examples and plans that are for such a card."""
    profiles = {path.stem: read(path) for path in (SHIPPED, *EXAMPLES)} | {name: load_profile(name) for name in PLANS}
    found: dict[Key, tuple[Tier, ChainEntry]] = {}
    for profile, content in profiles.items():
        for name, tier in content.tiers.items():
            card = catalogue().gpus[tier.gpu] if tier.gpu is not None else None
            if card is not None and (profile == SHIPPED.stem or f"{card.capability:.1f}" == capability):
                found |= {(profile, name, entry.name): (tier, entry) for entry in tier.chain}
    return found


def odd_entries() -> dict[Key, tuple[Tier, ChainEntry]]:
    """Return entries that would be silently wrong, or are allowed though nothing ships with them."""
    return {
        (ODD.stem, name, entry.name): (tier, entry)
        for name, tier in read(ODD).tiers.items()
        if tier.gpu is not None
        for entry in tier.chain
    }


def read(path: Path) -> Profile:
    """Return a profile."""
    return Profile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
