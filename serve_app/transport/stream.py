"""A stream's items as they come in, and a tick whenever none came for a while.

ItemStream        what a consumer reads: items in order, ticks, the end
  of LocalStream   fed from a generator in this process (the stub engine)
  of ReplicaStream     fed from a replica over the token channel (`transport/channel.py`)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final, Generic, TypeVar

from serve_app.transport.tasks import cancel_and_wait

ItemT = TypeVar("ItemT")

_MOST_WAITING: Final = 256
"""Items held for a slow consumer; then the producer is told to wait."""


class Tick:
    """Stands for "nothing came within the interval"."""


TICK: Final = Tick()


class ItemStream(Generic[ItemT]):
    """One stream's items. The producer calls `put` and at last `end`; one consumer calls `get`."""

    def __init__(self) -> None:
        self._items: deque[ItemT] = deque()
        self._news = asyncio.Event()
        self._ended = False
        self._error: BaseException | None = None

    async def get(self, wait_s: float) -> ItemT | Tick | None:
        """The next item; TICK when none came within `wait_s` seconds; None at the end of the stream.

        Raises:
            what the stream ended with, after its last item.
        """
        if not self._items and not self._ended:
            self._news.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._news.wait()
            except TimeoutError:
                return TICK
        if self._items:
            item = self._items.popleft()
            if len(self._items) == _MOST_WAITING // 2:
                self._go_on()
            return item
        if self._error is not None:
            raise self._error
        return None

    def peek(self) -> ItemT | None:
        """The next item if it is here already."""
        return self._items[0] if self._items else None

    def put(self, item: ItemT) -> None:
        """One more item; nothing after the end."""
        if self._ended:
            return
        self._items.append(item)
        self._news.set()
        if len(self._items) == _MOST_WAITING:
            self._hold()

    def end(self, error: BaseException | None = None) -> None:
        """No more items; the first end counts."""
        if not self._ended:
            self._ended, self._error = True, error
            self._news.set()

    async def aclose(self) -> None:
        """Stop the producer; the consumer wants no more."""
        self.end()

    def _hold(self) -> None:
        """The consumer is slow: take no more from the producer for now."""

    def _go_on(self) -> None:
        """The consumer has caught up."""


class LocalStream(ItemStream[ItemT]):
    """A generator's items, read ahead by one task.

    Args:
        items: the generator; closed by `aclose`.
    """

    def __init__(self, items: AsyncGenerator[ItemT, None]) -> None:
        super().__init__()
        self._stream = items
        self._room = asyncio.Event()
        self._room.set()
        self._reading = asyncio.ensure_future(self._read())
        self._reading.add_done_callback(self._finish)

    async def aclose(self) -> None:
        """Stop reading and close the generator."""
        self.end()
        try:
            await cancel_and_wait(self._reading)
        finally:
            await self._stream.aclose()

    async def _read(self) -> None:
        async for item in self._stream:
            self.put(item)
            await self._room.wait()

    def _finish(self, reading: asyncio.Task[None]) -> None:
        self.end(None if reading.cancelled() else reading.exception())

    def _hold(self) -> None:
        self._room.clear()

    def _go_on(self) -> None:
        self._room.set()
