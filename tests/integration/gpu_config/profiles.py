"""The entries with GPUs that this project ships and shows, and on which pretended cards they are tried."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import yaml

from cluster.catalogue.types import catalogue
from router.registry import ChainEntry, Profile, Tier

ROOT: Final = Path(__file__).parents[3]
SHIPPED: Final = ROOT / "cluster/profiles/gpu.yaml"
EXAMPLES: Final = tuple(sorted((ROOT / "docs/profiles").glob("*.yaml")))
ODD: Final = Path(__file__).with_name("odd.yaml")
OTHER_SETTINGS: Final = "other settings"
"""In place of a profile's name: its first speculating entry again, with other settings of ours."""
CAPABILITIES: Final = ("8.0", "8.6", "8.9", "9.0")

Key = tuple[str, str, str]
"""Profile, tier, chain entry."""


def entries(capability: str) -> dict[Key, tuple[Tier, ChainEntry]]:
    """Return the shipped profile's entries, on every card, and those of the examples that are for such a card."""
    found: dict[Key, tuple[Tier, ChainEntry]] = {}
    for path in (SHIPPED, *EXAMPLES):
        for name, tier in read(path).tiers.items():
            card = catalogue().gpus[tier.gpu] if tier.gpu is not None else None
            if card is not None and (path == SHIPPED or f"{card.capability:.1f}" == capability):
                found |= {(path.stem, name, entry.name): (tier, entry) for entry in tier.chain}
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
