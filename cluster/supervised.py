"""What works beside the requests for as long as its process does, and must not end by an error.

Such work comes in rounds: look, report, send, refresh. A round that fails, is cancelled by somebody else or takes too
long is logged, and the next one follows after a pause that doubles up to a few seconds. So an error costs a round, not
the work; it is told by `trouble` until a round succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from cluster.seldom_log import SeldomLog

logger = logging.getLogger("ray.serve")

FIRST_PAUSE_S: Final = 0.5
MOST_PAUSE_S: Final = 5.0
"""Pause after a failed round, s: doubled by each further one, up to the most."""
HOPELESS_AFTER_S: Final = 300.0
"""When every round has failed for so long, the process itself is to be replaced, s."""


class Supervised:
    """One such work.

    Args:
        name: what it does, in words for people.
        work: one round.
        within_s: longest time of a round, s; None: it waits for something that may never come.
        away: errors that say that somebody else is away for a while. They are no reason to replace this process.
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
        self._log = SeldomLog(logger)
        self._task: asyncio.Task[None] | None = None
        self._failed_rounds = 0
        self._failing_since_s = 0.0
        self._hopeless_since_s: float | None = None
        self._error = ""

    def start(self) -> None:
        """Begin, in the running event loop."""
        self._task = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def trouble(self) -> str | None:
        """What is wrong, in words; None: nothing."""
        if self._task is not None and self._task.done():
            return "it has ended"
        if not self._failed_rounds:
            return None
        for_s = asyncio.get_running_loop().time() - self._failing_since_s
        return f"{self._failed_rounds} failed rounds in {for_s:.0f} s, the last: {self._error}"

    def raise_if_hopeless(self) -> None:
        """For the health check of the process.

        Raises:
            RuntimeError: it has ended, or has failed for so long that only a new process may help.
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
                # Serve and gRPC cancel a call of their own accord when the replica that it went to goes away.
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                self._failed(error, away=True)
            except self._away as error:
                self._failed(error, away=True)
            except Exception as error:  # noqa: BLE001 - to survive what nobody expects is what this is for
                self._failed(error, away=False)
            else:
                self._worked()
                await asyncio.sleep(0)  # a round that waits for nothing must not keep the others from theirs
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

    def _worked(self) -> None:
        if self._failed_rounds:
            logger.info("%s: works again after %d failed rounds", self.name, self._failed_rounds)
        self._failed_rounds, self._hopeless_since_s = 0, None


def troubles(works: Iterable[Supervised]) -> dict[str, str]:
    """What is wrong, by name of the work; empty: nothing."""
    return {work.name: words for work in works if (words := work.trouble())}
