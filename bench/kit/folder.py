"""What the models folder has for a profile: whole models, configs alone, unquantised models to compare with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from bench.kit.plan import Models
from bench.kit.stand_ins import write_stand_in
from cluster.catalogue.types import catalogue
from cluster.weights.folder import missing_reason, model_path
from router.registry import Profile

ROOM: Final = 0.8
"""Share of the cards' memory that weights may take, so that an engine has room beside them."""


def models_in(folder: Path, profile: Profile, memory_gib: float, stand_ins: Path) -> Models:
    """Return what the folder has of the profile's models.

    A model whose folder has a `config.json` and no weights runs with made-up ones. So does one that is not there at
    all, if the catalogue knows its shape.

    Args:
        folder: the models folder.
        stand_ins: takes the configs from the catalogue.
        profile: names the models.
        memory_gib: of all cards of this machine; 0: there is none, and any model fits.
    """
    missing, dummy = {}, set()
    for key in profile.models:
        path = model_path(folder, key)
        if has_weights(path):
            continue
        if (path / "config.json").is_file() or write_stand_in(stand_ins / key, key, catalogue()):
            dummy.add(key)
        else:
            missing[key] = missing_reason(folder, key) or f"{path} has no weights"
    unquantised = {
        key: base
        for key in profile.models
        if key not in missing and key not in dummy and is_quantised(model_path(folder, key))
        for base in [_unquantised(folder, key)]
        if base is not None and (not memory_gib or _size_gib(model_path(folder, base)) <= ROOM * memory_gib)
    }
    return Models(missing, frozenset(dummy), unquantised)


def folder_of(folder: Path, key: str, stand_ins: Path) -> Path:
    """Return where a model is: in the models folder, or where the catalogue's config was written."""
    path = model_path(folder, key)
    return path if (path / "config.json").is_file() else stand_ins / key


def has_weights(path: Path) -> bool:
    """Return whether a folder has a config and weights."""
    return (path / "config.json").is_file() and any(path.glob("*.safetensors"))


def is_quantised(path: Path) -> bool:
    """Return whether a model's config says how its weights were quantised."""
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    return "quantization_config" in config or "compression_config" in config


def _unquantised(folder: Path, key: str) -> str | None:
    """Return the unquantised model in the folder whose name begins this one's: `llama-8b` for `llama-8b-fp8`."""
    names = [
        path.name
        for path in folder.iterdir()
        if key.startswith(f"{path.name}-") and has_weights(path) and not is_quantised(path)
    ]
    return max(names, key=len, default=None)


def _size_gib(path: Path) -> float:
    return float(sum(file.stat().st_size for file in path.glob("*.safetensors"))) / 2**30
