"""Decision records of the last hour, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

KEPT_S: Final = 3600.0
"""A record is kept for so long, s."""
MOST_BYTES: Final = 64 * 2**20
"""Of all records together; the oldest go first. An hour of 20 requests a second, with records of 0.9 kB."""


class KeptDecision(NamedTuple):
    """A decision record on its way to the pool, and in it."""

    decision_id: str
    record: bytes
    """JSON, compressed; what is inside is the ingress's business."""


class Decisions:
    """The newest decision records by id."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._records: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        """By id, oldest first: when it came, and the record."""

    def add(self, decisions: Iterable[KeptDecision], now_s: float) -> None:
        """Add records; one that is here already, as after a lost answer, stays as it is."""
        for decision_id, record in decisions:
            if decision_id not in self._records:
                self._records[decision_id] = (now_s, record)
                self._bytes += len(record)
        self._forget(now_s)

    def get(self, decision_id: str, now_s: float) -> bytes | None:
        """Return a record; None: it is not here, or no longer."""
        self._forget(now_s)
        return self._records.get(decision_id, (0.0, None))[1]

    def _forget(self, now_s: float) -> None:
        while self._records:
            came_s, record = next(iter(self._records.values()))
            if now_s - came_s <= KEPT_S and self._bytes <= self._most_bytes:
                return
            self._records.popitem(last=False)
            self._bytes -= len(record)
