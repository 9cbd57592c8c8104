"""An explanation beside an answer: begun once, taken once, cancelled with the request. On a clock that jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from router.agent.metering import Meter, Usage
from router.agent.result import AgentFallback
from router.agent.settings import AgentSettings
from serve_app.api.explanation import END_WAIT_S, Explanation


def after(seconds: float, ending: str | AgentFallback = "Because.") -> Callable[[Meter], Awaitable[str]]:
    async def explain(meter: Meter) -> str:
        meter.begin()
        meter.note(Usage(input_tokens=100))
        await asyncio.sleep(seconds)
        meter.note(Usage(input_tokens=100, output_tokens=10))
        if isinstance(ending, AgentFallback):
            raise ending
        return ending

    return explain


def explanation(explain: Callable[[Meter], Awaitable[str]]) -> Explanation:
    return Explanation(explain, AgentSettings(), clock=lambda: asyncio.get_running_loop().time())


async def test_the_result_is_taken_once_and_not_before_it_is_ready() -> None:
    beside = explanation(after(3))
    assert beside.take() is None
    beside.begin()
    await asyncio.sleep(2)
    assert beside.take() is None
    await asyncio.sleep(2)
    result = beside.take()
    assert result is not None
    assert result.text == "Because."
    assert (result.usage.output_tokens, result.calls, result.fallback) == (10, 1, None)
    assert beside.take() is None
    assert await beside.last() is None


async def test_begin_starts_the_work_once() -> None:
    begun = 0

    async def explain(meter: Meter) -> str:
        nonlocal begun
        begun += 1
        return "Because."

    beside = explanation(explain)
    for _ in range(3):
        beside.begin()
        await asyncio.sleep(1)
    assert begun == 1


@pytest.mark.parametrize(("takes_s", "waited_s"), [(0.0, 0.0), (0.6, 0.6)])
async def test_last_waits_for_an_explanation_that_is_nearly_ready(takes_s: float, waited_s: float) -> None:
    loop, beside = asyncio.get_running_loop(), explanation(after(takes_s))
    began = loop.time()
    result = await beside.last()
    assert result is not None
    assert result.text == "Because."
    assert loop.time() - began == pytest.approx(waited_s)


async def test_last_cancels_an_explanation_that_is_not_ready_in_time() -> None:
    loop, beside = asyncio.get_running_loop(), explanation(after(30))
    beside.begin()
    await asyncio.sleep(5)
    began = loop.time()
    result = await beside.last()
    assert result is not None
    assert loop.time() - began == pytest.approx(END_WAIT_S)
    assert result.text is None
    assert result.fallback == "late"
    assert result.usage == Usage(input_tokens=100)
    assert result.duration_ms == pytest.approx(5000 + 1000 * END_WAIT_S)
    assert len(asyncio.all_tasks()) == 1


async def test_a_fallback_is_a_result_with_its_reason() -> None:
    beside = explanation(after(0, AgentFallback("overloaded", "HTTP 529")))
    result = await beside.last()
    assert result is not None
    assert result.text is None
    assert result.metrics()["fallback"] == "overloaded"


async def test_aclose_cancels_the_work() -> None:
    cancelled = asyncio.Event()

    async def explain(meter: Meter) -> str:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return "Because."

    beside = explanation(explain)
    beside.begin()
    await asyncio.sleep(1)
    await beside.aclose()
    assert cancelled.is_set()


async def test_aclose_before_begin_does_nothing() -> None:
    beside = explanation(after(1))
    await beside.aclose()
    assert beside.take() is None


@pytest.mark.parametrize("error", [KeyError("nobody expects this"), asyncio.CancelledError()])
async def test_an_unexpected_error_is_a_result_and_breaks_no_answer(error: BaseException) -> None:
    async def explain(meter: Meter) -> str:
        raise error

    beside = explanation(explain)
    result = await beside.last()
    assert result is not None
    assert (result.text, result.fallback) == (None, "internal_error")
