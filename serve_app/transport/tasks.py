"""Ends tasks for certain."""

from __future__ import annotations

import asyncio
from typing import Any


async def cancel_and_wait(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks, each once, and wait until they have ended, however often the waiter is cancelled meanwhile.

    A client that leaves is noticed more than once: its connection is cut, and Serve cancels its call. A `gather` that
    is cancelled cancels its tasks again, in the middle of their clean-up, and what they had under way goes on.

    Raises:
        CancelledError: after the tasks have ended, if the waiter was cancelled.
    """
    for task in tasks:
        task.cancel()
    cancelled: asyncio.CancelledError | None = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            cancelled = error
    for task in tasks:
        if not task.cancelled():
            task.exception()  # looked at: what a task failed with that nobody wants any more is no news
    if cancelled is not None:
        raise cancelled
