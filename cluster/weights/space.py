"""Disk space: known before a download begins, so that it does not end at nine tenths with a full disk."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

from cluster.weights.errors import WeightsError

FreeSpace = Callable[[Path], int]  # free bytes on the file system that holds the path


def free_bytes(path: Path) -> int:
    """Free space for this user on the file system of an existing path, bytes."""
    return shutil.disk_usage(path).free


def require_space(folder: Path, needed: int, key: str, free: FreeSpace) -> None:
    """Check that `needed` bytes fit.

    Raises:
        WeightsError: they do not.
    """
    available = free(folder)
    if available < needed:
        raise WeightsError(
            f"no space for {key}: {format_size(needed)} still to write, {folder} has {format_size(available)} free; "
            "free some, or name another disk with --models-dir or MODELS_DIR"
        )


def is_disk_full(error: OSError) -> bool:
    """Whether the operating system refused a write for lack of space or quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def format_size(size: int) -> str:
    """A size in words, decimal units: `269.1 MB`."""
    value = float(size)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"
