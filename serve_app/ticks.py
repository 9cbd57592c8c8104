"""Waiting on a stream without falling silent: its items, and a tick whenever none came for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final, Generic, TypeVar

ItemT = TypeVar("ItemT")


class Tick:
    """Stands for "nothing came within the interval"."""


TICK: Final = Tick()


class Ticking(Generic[ItemT]):
    """An async iterator's items, one at a time, with a limit on each wait that does not disturb the iterator.

    Args:
        items: the stream; closed with this object.
    """

    def __init__(self, items: AsyncGenerator[ItemT, None]) -> None:
        self._items: AsyncIterator[ItemT] = items
        self._close = items.aclose
        self._next: asyncio.Task[ItemT] | None = None

    async def get(self, wait_s: float) -> ItemT | Tick | None:
        """The next item; TICK when none came within `wait_s` seconds; None at the end of the stream.

        Raises:
            whatever the stream raises.
        """
        if self._next is None:
            self._next = asyncio.ensure_future(_next(self._items))
        done, _ = await asyncio.wait({self._next}, timeout=wait_s)
        if not done:
            return TICK
        task, self._next = self._next, None
        try:
            return task.result()
        except StopAsyncIteration:
            return None

    async def aclose(self) -> None:
        """Stop waiting and close the stream."""
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)
        await self._close()


async def _next(items: AsyncIterator[ItemT]) -> ItemT:
    return await anext(items)
