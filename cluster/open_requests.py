"""What the pool knows while its application is being stopped: that it is, and what is still open at the ingress."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

REPORT_OPEN_EVERY_S: Final = 0.2
"""Interval of the ingress replicas' counts once the gates are closed, s."""
_STALE_AFTER_S: Final = 5.0
"""A count that was not renewed for so long is of a replica that is gone, s."""


class OpenRequests:
    """Closed once, for good; then counts come in, by ingress replica.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._closed = asyncio.Event()
        self._counts: dict[str, tuple[float, int]] = {}

    def close(self) -> None:
        """Nothing new is to be taken from now on."""
        self._closed.set()

    async def closed(self, within_s: float) -> bool:
        """Whether it is closed: at once when it is, else when that comes, or after `within_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._closed.wait()
        return self._closed.is_set()

    def report(self, replica_id: str, count: int) -> None:
        """An ingress replica that takes nothing new holds so many requests."""
        self._counts[replica_id] = (self._clock(), count)

    def counts(self) -> dict[str, int]:
        """The newest count of every ingress replica that has closed its gate and lives."""
        now_s = self._clock()
        return {replica: count for replica, (told_s, count) in self._counts.items() if now_s - told_s < _STALE_AFTER_S}
