"""Verification: reads every file again and compares it with its manifest. About a second per GB."""

from __future__ import annotations

from pathlib import Path

from cluster.weights.folder import missing_reason, model_path
from cluster.weights.manifest import damaged_files, read_manifest


def problem_of(models_dir: Path, key: str) -> str | None:
    """What is wrong with a model's files, in words with what to do; None when all are as they were seeded.

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
    return (
        f"weights of {key} are damaged: {', '.join(str(path / name) for name in damaged)}; delete {path} and seed again"
    )
