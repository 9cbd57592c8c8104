"""Watches the engine of a replica, and ends the replica when the engine has died.

Serve checks a replica's health every few seconds and replaces it after three failures; meanwhile it sends requests
there. A process that has ended is noticed by the next request and by Serve's next health check.

An engine that stalls (a collective that hangs, a stopped process) does not die. After `STALLED_AFTER_S` its replica
sends no heartbeat any more, so that its streams go on elsewhere, and is not healthy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from serve_app.engine.interface import Engine, EngineError

logger = logging.getLogger("ray.serve")

STALLED_AFTER_S: Final = 300.0
"""An engine that has requests and finishes no step for so long, s, stalls: vLLM gives a step of several GPUs as long
(`VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS`)."""
_LAST_ERRORS_S: Final = 2.0
"""Longest time between an engine's death and its replica's end, s."""
_POLL_EVERY_S: Final = 0.02


async def end_with_engine(name: str, engine: Engine, under_way: Callable[[], int], end: Callable[[], None]) -> None:
    """Wait for the engine's death, let the streams end with its error, and end this process.

    Args:
        name: of the replica, for the log.
        engine: a started one.
        under_way: returns how many requests are at the engine.
        end: ends this process at once.
    """
    await engine.died()
    logger.error("%s: the engine has died; the replica ends so that Serve replaces it", name)
    # vLLM has given each request its error. Its remaining processes would keep the GPU.
    rest = {asyncio.ensure_future(engine.shutdown()), asyncio.ensure_future(_idle(under_way))}
    await asyncio.wait(rest, timeout=_LAST_ERRORS_S)
    end()


def raise_if_stalled(engine: Engine) -> None:
    """Raise `EngineError` if the engine stalls."""
    silent_s = engine.silent_s()
    if silent_s > STALLED_AFTER_S:
        raise EngineError(
            "engine_dead", f"the engine has finished no step for {silent_s:.0f} s", status=503, retryable=True
        )


async def _idle(under_way: Callable[[], int]) -> None:
    while under_way() > 0:  # noqa: ASYNC110
        # Requests are only counted, and nothing else waits for the count, so it is polled.
        await asyncio.sleep(_POLL_EVERY_S)
