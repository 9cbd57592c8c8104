"""An explanation beside an answer: begun once, told once, cancelled with the request. On a clock that jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from router.agent.metering import Meter, Usage
from router.agent.report import Fallback
from router.agent.settings import AgentSettings
from serve_app.api.explanation import Explanation

SETTINGS = AgentSettings(end_wait_s=1.0)


def after(seconds: float, ending: str | Fallback = "Because.") -> Callable[[Meter], Awaitable[str | Fallback]]:
    async def tell(meter: Meter) -> str | Fallback:
        meter.begin()
        meter.note(Usage(input_tokens=100))
        await asyncio.sleep(seconds)
        meter.note(Usage(input_tokens=100, output_tokens=10))
        return ending

    return tell


def explanation(tell: Callable[[Meter], Awaitable[str | Fallback]]) -> Explanation:
    return Explanation(tell, SETTINGS, clock=lambda: asyncio.get_running_loop().time())


async def test_it_is_taken_once_and_not_before_it_is_there() -> None:
    beside = explanation(after(3))
    assert beside.take() is None
    beside.begin()
    await asyncio.sleep(2)
    assert beside.take() is None
    await asyncio.sleep(2)
    told = beside.take()
    assert told is not None
    assert told.text == "Because."
    assert (told.report.usage.output_tokens, told.report.calls, told.report.fallback) == (10, 1, None)
    assert beside.take() is None
    assert await beside.last() is None


async def test_beginning_it_twice_begins_it_once() -> None:
    begun = 0

    async def tell(meter: Meter) -> str:
        nonlocal begun
        begun += 1
        return "Because."

    beside = explanation(tell)
    for _ in range(3):
        beside.begin()
        await asyncio.sleep(1)
    assert begun == 1


@pytest.mark.parametrize(("takes_s", "waited_s"), [(0.0, 0.0), (0.6, 0.6)])
async def test_the_end_waits_for_one_that_is_nearly_there(takes_s: float, waited_s: float) -> None:
    loop, beside = asyncio.get_running_loop(), explanation(after(takes_s))
    began = loop.time()
    told = await beside.last()
    assert told is not None
    assert told.text == "Because."
    assert loop.time() - began == pytest.approx(waited_s)


async def test_but_only_for_so_long_and_then_hangs_up() -> None:
    loop, beside = asyncio.get_running_loop(), explanation(after(30))
    beside.begin()
    await asyncio.sleep(5)
    began = loop.time()
    told = await beside.last()
    assert told is not None
    assert loop.time() - began == pytest.approx(1.0)
    assert told.text is None
    assert told.report.fallback is not None
    assert told.report.fallback.code == "late"
    assert told.report.usage == Usage(input_tokens=100)
    assert told.report.duration_ms == pytest.approx(6000)
    assert len(asyncio.all_tasks()) == 1


async def test_a_failure_is_told_with_its_reason() -> None:
    beside = explanation(after(0, Fallback("overloaded", "HTTP 529")))
    told = await beside.last()
    assert told is not None
    assert told.text is None
    assert told.report.metrics()["fallback"] == "overloaded"


async def test_closing_it_cancels_what_is_under_way() -> None:
    cancelled = asyncio.Event()

    async def tell(meter: Meter) -> str:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return "Because."

    beside = explanation(tell)
    beside.begin()
    await asyncio.sleep(1)
    await beside.aclose()
    assert cancelled.is_set()


async def test_closing_one_that_never_began_does_nothing() -> None:
    beside = explanation(after(1))
    await beside.aclose()
    assert beside.take() is None


@pytest.mark.parametrize("error", [KeyError("nobody expects this"), asyncio.CancelledError()])
async def test_one_that_breaks_leaves_the_routers_own_words_and_breaks_no_answer(error: BaseException) -> None:
    async def tell(meter: Meter) -> str:
        raise error

    beside = explanation(tell)
    told = await beside.last()
    assert told is not None
    assert (told.text, told.report.fallback) == (None, Fallback("internal_error", "the explanation ended"))
