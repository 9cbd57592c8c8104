"""What an ingress replica sends to the pool in batches.

A request only appends to a queue. A background task sends the queue as one batch. While the pool is away, the newest
items are kept, up to a bound. A batch whose answer is lost is sent again and may count twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from cluster.supervision import Supervised
from serve_app.transport.ray_errors import RAY_ERRORS

ItemT = TypeVar("ItemT")

SEND_EVERY_S: Final = 0.5
"""How long an ingress replica collects items before it sends them, s: at most two calls a second, while the pool's copy
stays as new as the load."""
MOST_WAITING: Final = 2000
"""So many items are kept for a pool that does not answer."""
_ANSWER_WITHIN_S: Final = 10.0


class Outbox(Generic[ItemT]):
    """Sends items in batches while `work` is started.

    Args:
        name: of the background task.
        call: sends a batch to the pool.
    """

    def __init__(self, name: str, call: Callable[[list[ItemT]], Awaitable[object]]) -> None:
        self._call = call
        self.waiting = deque[ItemT](maxlen=MOST_WAITING)
        self._some = asyncio.Event()
        self.work = Supervised(name, self._collect_and_send, away=RAY_ERRORS)

    def add(self, item: ItemT) -> None:
        """Add an item; never waits."""
        self.waiting.append(item)
        self._some.set()

    async def _collect_and_send(self) -> None:
        await self._some.wait()
        await asyncio.sleep(SEND_EVERY_S)
        await self.send()

    async def send(self) -> None:
        """Send all waiting items now; on failure they wait for the next call.

        Raises:
            RAY_ERRORS: the pool is away.
        """
        batch, sent = list(self.waiting), False
        self.waiting.clear()
        self._some.clear()
        if not batch:
            return
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                await self._call(batch)
            sent = True
        finally:
            if not sent:
                self.waiting = deque([*batch, *self.waiting], maxlen=MOST_WAITING)
                self._some.set()
