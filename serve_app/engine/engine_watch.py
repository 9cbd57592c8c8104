"""Watches the engine of a replica, and ends the replica when the engine has died.

Serve checks a replica's health every few seconds and replaces it after three failures; meanwhile it sends requests
there. A process that has ended is noticed by the next request and by Serve's next health check.

An engine that stalls (a collective that hangs, a driver, a stopped process) does not die. One that has requests and
finishes no step for `STALLED_AFTER_S` is killed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from serve_app.engine.interface import Engine

logger = logging.getLogger("ray.serve")

STALLED_AFTER_S: Final = 300.0
"""An engine that has requests and finishes no step for so long, s, stalls: vLLM gives a step of several GPUs as long
(`VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS`)."""
_LOOK_EVERY_S: Final = 1.0
_LAST_ERRORS_S: Final = 2.0
"""Longest time between an engine's death and its replica's end, s."""
_POLL_EVERY_S: Final = 0.02


class Silence:
    """For how long an engine has had requests and has finished no step.

    Time in which it has none does not count, and does not end the silence: requests that give up are no sign of life.
    """

    def __init__(self) -> None:
        self.silent_s = 0.0
        self._looked_s: float | None = None
        self._last_step_s = 0.0

    def look(self, now_s: float, last_step_s: float, *, working: bool) -> float:
        """Return for how long, s. Call it about once a second.

        Args:
            now_s: clock, s.
            last_step_s: when the engine's last step ended, by any clock, s.
            working: whether the engine has requests.
        """
        # After a pause of this process nothing is known of the engine: what it sent has not been read.
        passed_s = 0.0 if self._looked_s is None else min(now_s - self._looked_s, 2 * _LOOK_EVERY_S)
        self._looked_s = now_s
        if last_step_s != self._last_step_s:
            self._last_step_s, self.silent_s = last_step_s, 0.0
        elif working:
            self.silent_s += passed_s
        return self.silent_s


async def kill_when_stalled(name: str, engine: Engine) -> None:
    """Wait until the engine stalls, and kill it: `end_with_engine` does the rest.

    Args:
        name: of the replica, for the log.
        engine: a started one.
    """
    silence, loop = Silence(), asyncio.get_running_loop()
    while silence.silent_s <= STALLED_AFTER_S:
        await asyncio.sleep(_LOOK_EVERY_S)
        silence.look(loop.time(), engine.last_step_s(), working=engine.load().working)
    logger.error("%s: the engine has work and has finished no step for %.0f s; it is killed", name, silence.silent_s)
    engine.kill()


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


async def _idle(under_way: Callable[[], int]) -> None:
    while under_way() > 0:  # noqa: ASYNC110
        # Requests are only counted, and nothing else waits for the count, so it is polled.
        await asyncio.sleep(_POLL_EVERY_S)
