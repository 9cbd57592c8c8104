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

_FAREWELL_S: Final = 2.0
"""Longest time between an engine's death and its replica's end, s."""
_LOOK_EVERY_S: Final = 0.02


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
    # vLLM has given each request its error; what is left of its processes would keep the GPU.
    rest = {asyncio.ensure_future(engine.shutdown()), asyncio.ensure_future(_idle(under_way))}
    await asyncio.wait(rest, timeout=_FAREWELL_S)
    end()


async def _idle(under_way: Callable[[], int]) -> None:
    while under_way() > 0:  # noqa: ASYNC110
        # Requests come and go without a sign, and this is the only time that anybody wants to know.
        await asyncio.sleep(_LOOK_EVERY_S)
