"""Which vLLM the scheduler adapter was written for. Its methods are private to vLLM and change between releases."""

from __future__ import annotations

from typing import Final

KNOWN: Final = ("0.32.",)
"""Beginnings of the versions on which the adapter was run."""
NEEDED: Final = (
    "add_request",
    "schedule",
    "update_from_output",
    "update_draft_token_ids",
    "_update_after_schedule",
    "_free_request",
)
"""What the adapter overrides."""


class UnknownVllmError(RuntimeError):
    """This vLLM's scheduler is not one that the adapter was written for."""


def check_interface(version: str, scheduler: type) -> None:
    """Better no engine than wrong depths.

    Raises:
        UnknownVllmError: naming the versions and what is missing.
    """
    missing = [name for name in NEEDED if not callable(getattr(scheduler, name, None))]
    if missing or not version.startswith(KNOWN):
        known = ", ".join(prefix + "x" for prefix in KNOWN)
        lacks = f"; its scheduler lacks {', '.join(missing)}" if missing else ""
        raise UnknownVllmError(f"per-request speculation is written for vLLM {known}, this is {version}{lacks}")
