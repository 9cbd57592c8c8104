"""What the controller decides for a request at a step, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why a request has this many draft tokens; the values are shown to users."""

    ASKED = "asked"
    """The request asked for this k (0 included)."""
    SEEDED = "seeded"
    """A sampled request with a seed: its text must not depend on how many drafts each step had."""
    AUTO = "auto"
    """Most expected tokens per second for the batch."""
    AUTO_OFF = "auto_off"
    """Drafts for this request would cost more time than they save now."""
    TAU_STOPPED = "tau_stopped"
    """Acceptance fell under the request's floor."""
    PROBE = "probe"
    """A few drafts to find out whether the text has become predictable."""
    PLAIN = "plain"
    """A step without drafts to find out what drafts cost."""


@dataclass(frozen=True, slots=True)
class Decision:
    """How many draft tokens to verify for one request in its next step."""

    k: int
    reason: Reason
