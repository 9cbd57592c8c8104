"""Cancel tasks and wait until they have ended."""

from __future__ import annotations

import asyncio
from typing import Any


async def cancel_and_wait(*tasks: asyncio.Task[Any]) -> None:
    """Cancel each task once, and wait until all have ended, even if the waiter is cancelled several times meanwhile.

    A client that leaves is noticed more than once: its connection breaks, and Serve cancels its call. A `gather` that
    is cancelled would cancel its tasks again in the middle of their clean-up, and their requests would run on.

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
            task.exception()  # mark it as retrieved: nobody needs it, and asyncio would log it
    if cancelled is not None:
        raise cancelled
