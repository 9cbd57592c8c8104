"""Ends a replica whose engine has died.

Serve asks a replica every few seconds whether it is well, and replaces it after three bad answers; meanwhile it sends
requests there. A process that ends is noticed by whoever asks it next, and by Serve's next question.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from serve_app.engine.interface import Engine

logger = logging.getLogger("ray.serve")

_LOOK_EVERY_S: Final = 0.02
_FAREWELL_LOOKS: Final = 100
"""How often to look whether what was under way has been told: the engine has given each request its error, and this is
how long it may take to be sent."""


async def end_with_engine(name: str, engine: Engine, under_way: Callable[[], int], end: Callable[[], None]) -> None:
    """Wait for the engine's death, let the streams end with its error, and end this process.

    Args:
        name: of the replica, for the log.
        engine: a started one.
        under_way: how many requests are at the engine.
        end: ends this process at once.
    """
    await engine.died()
    logger.error("%s: its engine has died; the replica ends, for Serve to replace it", name)
    for _ in range(_FAREWELL_LOOKS):
        if not under_way():
            break
        await asyncio.sleep(_LOOK_EVERY_S)
    await engine.shutdown()  # what is left of its processes
    end()
