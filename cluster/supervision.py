"""Background tasks that run as long as their process and survive errors.

A task works in rounds: it refreshes, reports or sends something. If a round fails, is cancelled by somebody else or
takes too long, that is logged, and the next round follows after a pause that doubles up to a few seconds. So an error
costs one round, not the task. `trouble` says what is wrong until a round succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from cluster.rate_limited_log import RateLimitedLog

logger = logging.getLogger("ray.serve")

FIRST_PAUSE_S: Final = 0.5
MOST_PAUSE_S: Final = 5.0
"""Pause after a failed round, s: doubled by each further failure, up to the most."""
HOPELESS_AFTER_S: Final = 300.0
"""If every round has failed for this long, the process should be replaced, s."""


class Supervised:
    """One background task.

    Args:
        name: what it does, for people.
        work: one round.
        within_s: longest time of a round, s; None for a round that waits for something that may never come.
        away: errors that mean that another process is away for a while. They are no reason to replace this one.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], Awaitable[None]],
        *,
        within_s: float | None = None,
        away: tuple[type[Exception], ...] = (),
    ) -> None:
        self.name = name
        self._work = work
        self._within_s = within_s
        self._away = away
        self._log = RateLimitedLog(logger)
        self._task: asyncio.Task[None] | None = None
        self._failed_rounds = 0
        self._failing_since_s = 0.0
        self._hopeless_since_s: float | None = None
        self._error = ""

    def start(self) -> None:
        """Start it in the running event loop."""
        self._task = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        """Cancel it."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def trouble(self) -> str | None:
        """Return what is wrong, in words, or None."""
        if self._task is not None and self._task.done():
            return "it has ended"
        if not self._failed_rounds:
            return None
        for_s = asyncio.get_running_loop().time() - self._failing_since_s
        return f"{self._failed_rounds} failed rounds in {for_s:.0f} s, the last: {self._error}"

    def raise_if_hopeless(self) -> None:
        """Raise in the health check of a process that should be replaced.

        Raises:
            RuntimeError: the task has ended, or has failed for so long that only a new process may help.
        """
        since_s = self._hopeless_since_s
        ended = self._task is not None and self._task.done()
        if ended or (since_s is not None and asyncio.get_running_loop().time() - since_s > HOPELESS_AFTER_S):
            raise RuntimeError(f"{self.name}: {self.trouble()}")

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._within_s):
                    await self._work()
            except asyncio.CancelledError as error:
                # Serve and gRPC cancel a call when the replica that it went to goes away.
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                self._failed(error, away=True)
            except self._away as error:
                self._failed(error, away=True)
            except Exception as error:  # noqa: BLE001 - surviving unexpected errors is the purpose of this class
                self._failed(error, away=False)
            else:
                self._succeeded()
                await asyncio.sleep(0)  # let other tasks run even if a round waits for nothing
                continue
            await asyncio.sleep(min(MOST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(10, self._failed_rounds - 1)))

    def _failed(self, error: BaseException, *, away: bool) -> None:
        now_s = asyncio.get_running_loop().time()
        if not self._failed_rounds:
            self._failing_since_s = now_s
        if away:
            self._hopeless_since_s = None
        elif self._hopeless_since_s is None:
            self._hopeless_since_s = now_s
        self._failed_rounds += 1
        kind = type(error).__name__
        self._error = f"{kind}: {error}" if str(error) else kind
        self._log.warning(kind, "%s: %s", self.name, self._error, error=None if away else error)

    def _succeeded(self) -> None:
        if self._failed_rounds:
            logger.info("%s: works again after %d failed rounds", self.name, self._failed_rounds)
        self._failed_rounds, self._hopeless_since_s = 0, None


def troubles(tasks: Iterable[Supervised]) -> dict[str, str]:
    """Return what is wrong, by name of the task; empty if nothing is."""
    return {task.name: trouble for task in tasks if (trouble := task.trouble())}
