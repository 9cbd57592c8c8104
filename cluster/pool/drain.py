"""The pool's part in a drain: it closes the application, then counts what is still open at the ingress replicas."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

_STALE_AFTER_S: Final = 5.0
"""A replica that has not renewed its count for this long is gone, s."""


class DrainState:
    """Closed once and for good; afterwards the ingress replicas report how many requests they still hold.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._closed = asyncio.Event()
        self._counts: dict[str, tuple[float, int]] = {}

    def close(self) -> None:
        """Take no new requests from now on."""
        self._closed.set()

    async def closed(self, within_s: float) -> bool:
        """Return whether it is closed: as soon as it is, or after `within_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._closed.wait()
        return self._closed.is_set()

    def report(self, replica_id: str, count: int) -> None:
        """Take the count of an ingress replica that accepts no new requests."""
        self._counts[replica_id] = (self._clock(), count)

    def counts(self) -> dict[str, int]:
        """Return the newest count of every ingress replica that still reports."""
        now_s = self._clock()
        return {
            replica_id: count
            for replica_id, (reported_s, count) in self._counts.items()
            if now_s - reported_s < _STALE_AFTER_S
        }
