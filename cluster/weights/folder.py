"""The models folder: where each model's files are, and whether they are all there. Cheap: no hashing, no network."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from cluster.weights.errors import WeightsError
from cluster.weights.manifest import Manifest, read_manifest, wrong_sizes
from router.registry import ModelSource

_REPOSITORY_ROOT = Path(__file__).resolve().parents[2]


class State(StrEnum):
    """What a models folder holds of a model."""

    COMPLETE = "complete"
    PARTIAL = "partial"  # a seed began and has not finished
    DAMAGED = "damaged"  # it was whole; a file is gone or has another size now
    FOREIGN = "foreign"  # a folder that no seed made: it has no manifest
    MISSING = "missing"


def models_dir(env: Mapping[str, str]) -> Path:
    """The models folder: `MODELS_DIR`, else `models` beside this package. Absolute; it need not exist."""
    configured = env.get("MODELS_DIR")
    return Path(configured).expanduser().absolute() if configured else _REPOSITORY_ROOT / "models"


def model_path(models_dir: Path, key: str) -> Path:
    """Folder of the model that a profile's `models` calls `key`.

    Raises:
        WeightsError: `key` is not a plain folder name.
    """
    if key in ("", ".", "..") or "/" in key or "\\" in key or key.startswith("."):
        raise WeightsError(f"model name {key!r} must be a plain folder name: no slash, no leading dot")
    return models_dir / key


def partial_path(models_dir: Path, key: str) -> Path:
    """Sibling folder in which a seed collects the model's files before it is whole."""
    path = model_path(models_dir, key)
    return path.with_name(f"{path.name}.partial")


def complete_manifest(path: Path) -> Manifest | None:
    """The manifest of a model folder that is whole (every file there, sizes right); None of one that is not."""
    manifest = read_manifest(path)
    return manifest if manifest is not None and not wrong_sizes(path, manifest) else None


def is_complete(path: Path) -> bool:
    """Whether a model folder is whole: its manifest is there, and every file that it names has the right size."""
    return complete_manifest(path) is not None


def current_manifest(models_dir: Path, key: str, source: ModelSource) -> Manifest | None:
    """The manifest of a model that is whole and what the profile asks for; None of any other.

    A draft is no longer that when the model it was made of has changed since.

    Raises:
        WeightsError: `key` is not a plain folder name.
    """
    manifest = complete_manifest(model_path(models_dir, key))
    if manifest is None or not manifest.is_of(source):
        return None
    target = complete_manifest(model_path(models_dir, source.of)) if source.of is not None else None
    return manifest if target is None or target.fingerprint == manifest.commit else None


def state_of(models_dir: Path, key: str) -> State:
    """What the models folder holds of the model.

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
    """Why the model cannot be served from this folder, in words, with what to do; None when it can.

    Raises:
        WeightsError: `key` is not a plain folder name.
    """
    seed = "run `python -m cluster.weights seed --profile ...`"
    if unseen := _unseen(models_dir):
        node = socket.gethostname()
        return (
            f"models folder {models_dir} {unseen} on node {node}: mount the shared one there, set MODELS_DIR to the "
            f"path that all nodes see it at, or {seed}"
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


def _unseen(models_dir: Path) -> str | None:
    """What keeps this node from seeing the models folder; None when it sees one with something in it."""
    try:
        # A mount that failed leaves the empty folder that it would have covered.
        return None if any(models_dir.iterdir()) else "is empty"
    except FileNotFoundError:
        return "does not exist"
    except OSError as error:  # no permission, no folder, or a file server that went away
        return f"cannot be read ({error.strerror})"
