"""The models folder: where each model is, whether it is complete, and whether there is space for another."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from cluster.weights.errors import WeightsError
from cluster.weights.manifest import Manifest, damaged_files, read_manifest, wrong_sizes
from router.registry import ModelSource

_REPOSITORY_ROOT = Path(__file__).resolve().parents[2]


class State(StrEnum):
    """State of a model in the models folder."""

    COMPLETE = "complete"
    PARTIAL = "partial"  # a seed began and has not finished
    DAMAGED = "damaged"  # it was complete; a file is missing or has another size now
    FOREIGN = "foreign"  # a folder without a manifest, which no seed made
    MISSING = "missing"


def models_dir(env: Mapping[str, str]) -> Path:
    """Return the absolute models folder: `MODELS_DIR`, else `models` in the repository. It need not exist."""
    configured = env.get("MODELS_DIR")
    return Path(configured).expanduser().absolute() if configured else _REPOSITORY_ROOT / "models"


def model_path(models_dir: Path, key: str) -> Path:
    """Return the folder of the model that a profile's `models` calls `key`.

    Raises:
        WeightsError: `key` is not a plain folder name.
    """
    if key in ("", ".", "..") or "/" in key or "\\" in key or key.startswith("."):
        raise WeightsError(f"model name {key!r} must be a plain folder name: no slash, no leading dot")
    return models_dir / key


def partial_path(models_dir: Path, key: str) -> Path:
    """Return the sibling folder in which a seed collects the model's files until they are complete."""
    path = model_path(models_dir, key)
    return path.with_name(f"{path.name}.partial")


def complete_manifest(path: Path) -> Manifest | None:
    """Return the manifest of a complete model folder (every file has its size), else None. Reads no content."""
    manifest = read_manifest(path)
    return manifest if manifest is not None and not wrong_sizes(path, manifest) else None


def is_complete(path: Path) -> bool:
    """Return whether a model folder has a manifest, and every file in it has the right size."""
    return complete_manifest(path) is not None


def current_manifest(path: Path, source: ModelSource) -> Manifest | None:
    """Return the manifest of a complete model folder if the model is what the profile asks for, else None.

    An early-exit draft is outdated if the model that it was made from has changed since.

    Raises:
        WeightsError: `source.of` is not a plain folder name.
    """
    manifest = complete_manifest(path)
    if manifest is None or not manifest.is_of(source):
        return None
    target = complete_manifest(model_path(path.parent, source.of)) if source.of is not None else None
    return manifest if target is None or target.fingerprint == manifest.commit else None


def state_of(models_dir: Path, key: str) -> State:
    """Return the state of a model in the models folder.

    Raises:
        WeightsError: `key` is not a plain folder name.
    """
    path = model_path(models_dir, key)
    if path.is_dir():
        manifest = read_manifest(path)
        if manifest is None:
            return State.FOREIGN
        return State.DAMAGED if wrong_sizes(path, manifest) else State.COMPLETE
    return State.PARTIAL if partial_path(models_dir, key).is_dir() else State.MISSING


def missing_reason(models_dir: Path, key: str) -> str | None:
    """Return why the model cannot be served from this folder and what to do, or None if it can.

    Raises:
        WeightsError: `key` is not a plain folder name.
    """
    seed = "run `power-lever weights seed --profile ...`"
    if unreadable := _unreadable(models_dir):
        node = socket.gethostname()
        return (
            f"models folder {models_dir} {unreadable} on node {node}: mount the shared one there, set MODELS_DIR to "
            f"the path that all nodes see it at, or {seed}"
        )
    match state_of(models_dir, key):
        case State.COMPLETE:
            return None
        case State.MISSING:
            return f"weights of {key} are not in {models_dir}: {seed}"
        case State.PARTIAL:
            return f"weights of {key} are only partly in {models_dir}: {seed} again, it continues"
        case State.DAMAGED:
            path = model_path(models_dir, key)
            manifest = read_manifest(path)
            names = ", ".join(wrong_sizes(path, manifest)) if manifest else "manifest"
            return f"weights of {key} in {models_dir} are damaged ({names}): {seed} again"
        case State.FOREIGN:
            return f"{model_path(models_dir, key)} has no manifest, so no seed made it: move it away and {seed}"


def _unreadable(models_dir: Path) -> str | None:
    """Return why this node sees no models folder, or None if it sees one with something in it."""
    try:
        # A failed mount leaves the empty folder that it would have covered.
        return None if any(models_dir.iterdir()) else "is empty"
    except FileNotFoundError:
        return "does not exist"
    except OSError as error:  # no permission, not a folder, or a file server that went away
        return f"cannot be read ({error.strerror})"


def verify(models_dir: Path, key: str) -> str | None:
    """Read every file of a model again; return what is wrong and what to do, or None. Takes about a second per GB.

    Raises:
        WeightsError: `key` is not a plain folder name.
        OSError: a file cannot be read.
    """
    reason = missing_reason(models_dir, key)
    path = model_path(models_dir, key)
    manifest = read_manifest(path)
    if reason is not None or manifest is None:
        return reason
    damaged = damaged_files(path, manifest)
    if not damaged:
        return None
    names = ", ".join(str(path / name) for name in damaged)
    return f"weights of {key} are damaged: {names}; delete {path} and seed again"


def require_space(folder: Path, needed: int, key: str) -> None:
    """Check that `needed` bytes fit, so that a download does not fail at nine tenths.

    Raises:
        WeightsError: they do not fit.
    """
    available = shutil.disk_usage(folder).free
    if available < needed:
        raise WeightsError(
            f"no space for {key}: {format_size(needed)} still to write, {folder} has {format_size(available)} free; "
            "free some, or name another disk with --models-dir or MODELS_DIR"
        )


def format_size(size: int) -> str:
    """Return a size in decimal units: `269.1 MB`."""
    value = float(size)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"
