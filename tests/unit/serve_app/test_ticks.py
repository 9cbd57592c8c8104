"""Waiting on a stream: its items, a tick in each silent interval, and closing."""

from __future__ import annotations

import asyncio

import pytest

from serve_app.ticks import TICK, Ticking
from tests.support.streams import Script, Wait


async def test_items_come_in_order_then_none_for_ever() -> None:
    source = Ticking(Script(["a", "b"]).stream())
    assert [await source.get(1) for _ in range(4)] == ["a", "b", None, None]


async def test_each_silent_interval_is_a_tick_and_the_item_that_comes_late_is_not_lost() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    source = Ticking(Script([Wait(5), "late", "next"]).stream())
    assert [await source.get(2) for _ in range(4)] == [TICK, TICK, "late", "next"]
    assert loop.time() - began == pytest.approx(5)


async def test_what_the_stream_raises_is_raised() -> None:
    source = Ticking(Script(["a", RuntimeError("gone")]).stream())
    assert await source.get(1) == "a"
    with pytest.raises(RuntimeError, match="gone"):
        await source.get(1)


async def test_closing_while_an_item_is_awaited_closes_the_stream() -> None:
    script = Script([Wait(60), "never"])
    source = Ticking(script.stream())
    assert await source.get(1) is TICK
    await source.aclose()
    assert script.closed
    assert script.taken == []


async def test_closing_between_items_closes_the_stream_and_twice_is_fine() -> None:
    script = Script(["a", "b"])
    source = Ticking(script.stream())
    await source.get(1)
    await source.aclose()
    await source.aclose()
    assert script.closed


async def test_cancelling_a_wait_loses_no_item() -> None:
    source = Ticking(Script([Wait(1), "a"]).stream())
    waiting = asyncio.ensure_future(source.get(10))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert await source.get(10) == "a"


async def test_nothing_is_read_before_the_first_item_is_asked_for() -> None:
    script = Script(["a"])
    source = Ticking(script.stream())
    await asyncio.sleep(10)
    assert not script.opened
    await source.aclose()


async def test_peeking_shows_what_is_here_and_takes_nothing() -> None:
    source = Ticking(Script(["a", "b", Wait(5), "c"]).stream())
    assert source.peek() is None
    assert await source.get(1) == "a"
    assert source.peek() == "b"
    assert source.peek() == "b"
    assert await source.get(1) == "b"
    assert source.peek() is None
    assert await source.get(10) == "c"


async def test_items_that_came_before_a_failure_are_given_before_it_is_raised() -> None:
    source = Ticking(Script(["a", "b", RuntimeError("gone")]).stream())
    assert await source.get(1) == "a"
    await asyncio.sleep(10)
    assert await source.get(1) == "b"
    with pytest.raises(RuntimeError, match="gone"):
        await source.get(1)


async def test_a_slow_consumer_stops_the_reading_and_loses_nothing() -> None:
    script = Script(list(range(1000)))
    source = Ticking(script.stream())
    first = await source.get(1)
    await asyncio.sleep(60)
    assert len(script.taken) < 300
    got = [first]
    while (item := await source.get(1)) is not None:
        got.append(item)
    assert got == list(range(1000))


async def test_closing_while_the_reading_stands_still_closes_the_stream() -> None:
    script = Script(list(range(1000)))
    source = Ticking(script.stream())
    await source.get(1)
    await asyncio.sleep(1)
    await source.aclose()
    assert script.closed
