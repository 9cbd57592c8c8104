"""The explanation of a plan beside the answer. It begins when it can delay nothing and ends with the request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from router.agent.metering import Meter
from router.agent.result import AgentFallback, AgentResult
from router.agent.settings import AgentSettings
from router.trace_steps import Clock
from serve_app.transport.cancellation import cancel_and_wait

END_WAIT_S: Final = 1.0
"""How long the end of a stream waits for an explanation that is under way, s. Most explanations take less than two
seconds and begin behind the first token, so few streams wait; a longer wait would be an idle connection."""
Explain = Callable[[Meter], Awaitable[str]]
"""Returns the text and counts what it uses.

Raises:
    AgentFallback: there is no text.
"""


class Explanation:
    """One explanation: `begin` it, then call `take` now and then; `last` ends the waiting.

    Args:
        explain: does the work.
        settings: the agent's.
        clock: for its duration, s.
    """

    def __init__(self, explain: Explain, settings: AgentSettings, clock: Clock = time.perf_counter) -> None:
        self._explain = explain
        self._settings = settings
        self._clock = clock
        self._meter = Meter(settings.prices, settings.budget_usd)
        self._began = 0.0
        self._task: asyncio.Task[str] | None = None
        self._taken = False

    def begin(self) -> None:
        """Start the work; later calls do nothing."""
        if self._task is None:
            self._began = self._clock()
            self._task = asyncio.ensure_future(self._explain(self._meter))

    def take(self) -> AgentResult | None:
        """Return the result, once; None while the work is under way and after the result was taken."""
        if self._taken or self._task is None or not self._task.done():
            return None
        error = None if self._task.cancelled() else self._task.exception()
        if isinstance(error, AgentFallback):
            return self._result(error)
        if self._task.cancelled() or error is not None:
            # This is not expected, and a missing explanation is no reason to break an answer.
            return self._result(AgentFallback("internal_error", "the explanation failed"))
        return self._result(self._task.result())

    async def last(self) -> AgentResult | None:
        """Return the result after a wait of at most `END_WAIT_S`; None if it was taken before."""
        self.begin()
        if self._taken or self._task is None:
            return None
        await asyncio.wait((self._task,), timeout=END_WAIT_S)
        if self._task.done():
            return self.take()
        await self.aclose()
        return self._result(AgentFallback("late", f"not ready {END_WAIT_S:g} s after the answer"))

    async def aclose(self) -> None:
        """Cancel the work, and wait until it has ended."""
        if self._task is not None:
            await cancel_and_wait(self._task)

    def _result(self, ending: str | AgentFallback) -> AgentResult:
        self._taken = True
        duration_ms = (self._clock() - self._began) * 1000
        return AgentResult.of("single_shot", self._settings.model, self._meter, duration_ms, ending)
