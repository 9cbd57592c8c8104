"""The items of one request as they arrive, with a tick whenever none arrived for a while.

ItemStream           what a consumer reads: items in order, ticks, and the end, which is declared here alone
  of LocalStream     filled by a generator in this process (the stub engine)
  of ReplicaStream   filled by a replica over the token channel (`transport/channel.py`)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final, Generic, TypeVar

from serve_app.api.errors import Failure
from serve_app.transport.cancellation import cancel_and_wait

ItemT = TypeVar("ItemT")

_MAX_WAITING: Final = 256
"""Items that may wait for a slow consumer; then the producer is paused."""


class Tick:
    """Stands for "no item arrived within the interval"."""


TICK: Final = Tick()


class ItemStream(Generic[ItemT]):
    """The items of one request. The producer calls `put` and `end`; one consumer calls `get`."""

    def __init__(self) -> None:
        self._items: deque[ItemT] = deque()
        self._changed = asyncio.Event()
        self._ended = False
        self._error: BaseException | None = None

    async def get(self, wait_s: float) -> ItemT | Tick | None:
        """Return the next item; TICK if none arrives within `wait_s` seconds; None at the end of the stream.

        Raises:
            the error that ended the stream, after its last item; an `ApiError` if the producer sent a `Failure`.
        """
        if not self._items and not self._ended:
            self._changed.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                return TICK
        if self._items:
            item = self._items.popleft()
            if len(self._items) == _MAX_WAITING // 2:
                self._resume()
            return item
        if self._error is not None:
            raise self._error
        return None

    def peek(self) -> ItemT | None:
        """Return the next item if it has arrived."""
        return self._items[0] if self._items else None

    @property
    def complete(self) -> bool:
        """Whether all items have arrived, and no error after them."""
        return self._ended and self._error is None

    def put(self, item: ItemT | Failure) -> None:
        """Add an item. A `Failure` is the end; after the end, items are dropped."""
        if isinstance(item, Failure):
            self.end(item.as_api_error())
        elif not self._ended:
            self._items.append(item)
            self._changed.set()
            if len(self._items) == _MAX_WAITING:
                self._pause()

    def end(self, error: BaseException | None = None) -> None:
        """End the stream. Only the first end counts."""
        if not self._ended:
            self._ended, self._error = True, error
            self._changed.set()

    async def aclose(self) -> None:
        """Stop the producer: the consumer has left."""
        self.end()

    def _pause(self) -> None:
        """Pause the producer: the consumer is slow."""

    def _resume(self) -> None:
        """Resume the producer: the consumer has caught up."""


class LocalStream(ItemStream[ItemT]):
    """The items of a generator, read ahead by one task.

    Args:
        items: the generator; `aclose` closes it.
    """

    def __init__(self, items: AsyncGenerator[ItemT | Failure, None]) -> None:
        super().__init__()
        self._generator = items
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
            await self._generator.aclose()

    async def _read(self) -> None:
        async for item in self._generator:
            self.put(item)
            await self._room.wait()

    def _finish(self, reading: asyncio.Task[None]) -> None:
        self.end(None if reading.cancelled() else reading.exception())

    def _pause(self) -> None:
        self._room.clear()

    def _resume(self) -> None:
        self._room.set()
