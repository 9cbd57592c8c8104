"""What the pool and the other replicas send each other, and how often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from router.observation import NOTHING_LEARNED, Learned, Watts
from router.registry import DraftsChoice, TierName

REPORT_EVERY_S: Final = 1.0
"""Interval of the engine replicas' reports, s."""
REPORT_OPEN_EVERY_S: Final = 0.2
"""Interval of the ingress replicas' counts of open requests while the application is stopping, s."""
LONG_POLL_S: Final = 5.0
"""The pool answers a long poll after this time even if nothing has changed, s."""


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """State of one engine replica, by its own account."""

    tier: TierName
    replica_id: str
    state: Literal["loading", "running", "failed"]
    entry: str | None
    """The chain entry that it loads or serves."""
    failures: tuple[tuple[str, str], ...] = ()
    """(entry, reason) of the entries that this replica could not start."""
    engine_running: int = 0
    engine_waiting: int = 0
    queue_wait_ms: float = 0.0
    drafts: DraftsChoice | None = None
    """Who drafts for requests that do not choose; None where the entry makes no drafts."""
    drafts_reason: str | None = None
    """Why that changed; None: it did not."""
    learned: Learned = NOTHING_LEARNED
    """By the engine's speculation controller."""
    watts: Watts | None = None
    """Measured by its cards; None: it has no meter."""
    troubles: tuple[tuple[str, str], ...] = ()
    """(task, what is wrong) of the replica's background tasks."""


@dataclass(frozen=True, slots=True)
class DraftOrder:
    """An operator's order which drafts a tier uses."""

    drafts: DraftsChoice
    given_s: float
    """Seconds since the epoch. The same order given again is a new order."""
