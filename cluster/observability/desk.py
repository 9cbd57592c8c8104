"""The desk where replicas report their metrics, and where `GET /metrics` asks for the totals.

A report is held for a while, as a long poll. A question releases all that are held, and is answered when every replica
has reported since: so an answer has everything that happened before the question, and costs one call of each replica.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from cluster.observability.totals import MetricsReport, Snapshot, Totals, exposition

HOLD_S: Final = 2.0
"""How long a report is held, s. What a replica counted since its last report is lost if its process dies."""
SILENT_S: Final = 6.0
"""A replica that has not reported for so long is gone, s."""
ANSWER_WITHIN_S: Final = 2.0
"""Longest wait for the replicas' reports, s; then the answer is what is there."""


class MetricsDesk:
    """Keeps the totals of all replicas.

    Args:
        own: returns the gauges of the process that the desk is in.
    """

    def __init__(self, own: Callable[[], Snapshot]) -> None:
        self._own = own
        self._totals = Totals()
        self._reported: dict[str, tuple[float, int]] = {}
        """By replica: when it last reported, and the newest question that it then knew of."""
        self._asked = 0
        self._question = asyncio.Event()
        self._report = asyncio.Event()
        self._answering: asyncio.Future[bytes] | None = None
        self._next: asyncio.Future[bytes] | None = None

    async def take(self, report: MetricsReport) -> int:
        """Add a replica's report; return the number of the newest question: a new one at once, else after `HOLD_S`."""
        self._totals.take(report)
        self._reported[report.replica_id] = (asyncio.get_running_loop().time(), report.asked)
        # One event per report and question: a waiter holds no lock, so a cancelled one leaves nothing behind.
        self._report.set()
        self._report = asyncio.Event()
        if report.asked == self._asked:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HOLD_S):
                    await self._question.wait()
        return self._asked

    def take_last(self, report: MetricsReport) -> int:
        """Add a report of a replica that stops; return the number of the newest question."""
        self._totals.take(report)
        self._leave(report.replica_id)
        return self._asked

    def _leave(self, replica_id: str) -> None:
        self._reported.pop(replica_id, None)
        self._totals.forget(replica_id)

    async def answer(self) -> bytes:
        """Return the exposition of all totals.

        Questions that come while one is being answered are answered together after it, so the replicas are asked by one
        at a time.
        """
        if self._next is None:
            self._next = asyncio.ensure_future(self._answer_after(self._answering))
        return await asyncio.shield(self._next)

    async def _answer_after(self, other: asyncio.Future[bytes] | None) -> bytes:
        if other is not None:
            await asyncio.wait({other})
        self._answering, self._next = self._next, None
        self._asked += 1
        self._question.set()
        self._question = asyncio.Event()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_WITHIN_S):
                while not self._all_reported():
                    await self._report.wait()
        self._totals.take(MetricsReport("", 0, 0, {}, self._own()))
        return exposition(list(self._totals.metrics()))

    def _all_reported(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        for replica_id, (reported_s, _) in list(self._reported.items()):
            if now_s - reported_s > SILENT_S:
                self._leave(replica_id)
        return all(asked >= self._asked for _, asked in self._reported.values())
