"""Waiting on a stream without falling silent: its items, and a tick whenever none came for a while."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final, Generic, TypeVar

ItemT = TypeVar("ItemT")

_MOST_WAITING: Final = 256
"""Items held for a slow consumer; then the stream is not read further, and its producer feels it."""


class Tick:
    """Stands for "nothing came within the interval"."""


TICK: Final = Tick()


class Ticking(Generic[ItemT]):
    """A stream's items, read ahead by one task, so that a wait for the next one can end without disturbing the stream.

    Args:
        items: the stream; read from the first `get` on, closed by `aclose`.
    """

    def __init__(self, items: AsyncGenerator[ItemT, None]) -> None:
        self._items = items
        self._waiting: deque[ItemT] = deque()
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    async def get(self, wait_s: float) -> ItemT | Tick | None:
        """The next item; TICK when none came within `wait_s` seconds; None at the end of the stream.

        Raises:
            whatever the stream raises, after its last item.
        """
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())
            self._reading.add_done_callback(lambda _: self._arrived.set())
        if not self._waiting and not self._reading.done():
            self._arrived.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._arrived.wait()
            except TimeoutError:
                return TICK
        if self._waiting:
            self._taken.set()
            return self._waiting.popleft()
        self._reading.result()
        return None

    def peek(self) -> ItemT | None:
        """The next item if it is here already."""
        return self._waiting[0] if self._waiting else None

    async def aclose(self) -> None:
        """Stop reading and close the stream."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        await self._items.aclose()

    async def _read(self) -> None:
        async for item in self._items:
            self._waiting.append(item)
            self._arrived.set()
            while len(self._waiting) >= _MOST_WAITING:
                self._taken.clear()
                await self._taken.wait()
