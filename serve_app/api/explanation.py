"""Claude's explanation of one plan, beside the answer: begun when it can delay nothing, cancelled with the request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from router.agent.metering import Meter
from router.agent.report import AgentReport, Fallback
from router.agent.settings import AgentSettings
from router.plan import Clock
from serve_app.transport.tasks import cancel_and_wait

Tell = Callable[[Meter], Awaitable[str | Fallback]]
"""Gives the text, or why there is none; counts what it uses."""


@dataclass(frozen=True, slots=True)
class Told:
    """What came of it."""

    text: str | None
    """None: the deterministic router's own words stand."""
    report: AgentReport


class Explanation:
    """One explanation. `begin` it, then ask with `take` now and then; `last` ends the waiting.

    Args:
        tell: does the work.
        settings: the agent's.
        clock: for its duration, s.
    """

    def __init__(self, tell: Tell, settings: AgentSettings, clock: Clock = time.perf_counter) -> None:
        self._tell = tell
        self._settings = settings
        self._clock = clock
        self._meter = Meter(settings.prices, settings.budget_usd)
        self._began = 0.0
        self._telling: asyncio.Task[str | Fallback] | None = None
        self._taken = False

    def begin(self) -> None:
        """Start the work; later calls do nothing."""
        if self._telling is None:
            self._began = self._clock()
            self._telling = asyncio.ensure_future(self._tell(self._meter))

    def take(self) -> Told | None:
        """What came of it, once; None while it is under way and when it was taken."""
        if self._taken or self._telling is None or not self._telling.done():
            return None
        if self._telling.cancelled() or self._telling.exception() is not None:
            # Nobody expects it; an explanation is no reason to break an answer.
            return self._told(Fallback("internal_error", "the explanation ended"))
        return self._told(self._telling.result())

    async def last(self) -> Told | None:
        """What came of it, after a wait of at most `end_wait_s`; None when it was taken before."""
        self.begin()
        if self._taken or self._telling is None:
            return None
        await asyncio.wait((self._telling,), timeout=self._settings.end_wait_s)
        if self._telling.done():
            return self.take()
        await self.aclose()
        return self._told(Fallback("late", f"not there {self._settings.end_wait_s:g} s after the answer"))

    async def aclose(self) -> None:
        """Cancel what is under way, and wait until it has let go."""
        if self._telling is not None:
            await cancel_and_wait(self._telling)

    def _told(self, ending: str | Fallback) -> Told:
        self._taken = True
        duration_ms = (self._clock() - self._began) * 1000
        fallback = ending if isinstance(ending, Fallback) else None
        report = AgentReport.of("single_shot", self._settings.model, self._meter, duration_ms, fallback=fallback)
        return Told(None if isinstance(ending, Fallback) else ending, report)
