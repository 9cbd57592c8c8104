"""A stream: items in order, a tick in each silent interval, the end; and a stream that reads a generator ahead."""

from __future__ import annotations

import asyncio

import pytest

from serve_app.transport.stream import TICK, ItemStream, LocalStream
from tests.support.streams import Script, Wait

MAX_WAITING = 256


class Counting(ItemStream[int]):
    """Records when its producer was paused and resumed, and the next item then."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int | None]] = []

    def _pause(self) -> None:
        self.calls.append(("pause", self.peek()))

    def _resume(self) -> None:
        self.calls.append(("resume", self.peek()))


async def test_items_come_in_order_and_then_none_for_ever() -> None:
    stream = LocalStream(Script(["a", "b"]).stream())
    assert [await stream.get(1) for _ in range(4)] == ["a", "b", None, None]


async def test_each_silent_interval_is_a_tick_and_a_late_item_is_not_lost() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    stream = LocalStream(Script([Wait(5), "late", "next"]).stream())
    assert [await stream.get(2) for _ in range(4)] == [TICK, TICK, "late", "next"]
    assert loop.time() - began == pytest.approx(5)


async def test_an_error_of_the_generator_is_raised_each_time() -> None:
    stream = LocalStream(Script(["a", RuntimeError("gone")]).stream())
    assert await stream.get(1) == "a"
    for _ in range(2):
        with pytest.raises(RuntimeError, match="gone"):
            await stream.get(1)


async def test_closing_while_an_item_is_awaited_closes_the_stream() -> None:
    script = Script([Wait(60), "never"])
    stream = LocalStream(script.stream())
    assert await stream.get(1) is TICK
    await stream.aclose()
    assert script.closed
    assert script.taken == []
    assert await stream.get(1) is None


async def test_closing_between_items_closes_the_stream_and_twice_is_fine() -> None:
    script = Script(["a", "b"])
    stream = LocalStream(script.stream())
    await stream.get(1)
    await stream.aclose()
    await stream.aclose()
    assert script.closed


async def test_closing_before_the_reading_began_never_opens_the_stream() -> None:
    script = Script(["a"])
    stream = LocalStream(script.stream())
    await stream.aclose()
    await asyncio.sleep(10)
    assert not script.opened
    assert await stream.get(1) is None


async def test_closing_after_an_unread_error_logs_nothing() -> None:
    stream = LocalStream(Script(["a", RuntimeError("gone")]).stream())
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    assert await stream.get(1) == "a"
    await stream.aclose()
    del stream  # a task with an unretrieved exception logs it when it is collected
    await asyncio.sleep(1)
    assert complaints == []


async def test_cancelling_a_wait_loses_no_item() -> None:
    stream = LocalStream(Script([Wait(1), "a"]).stream())
    waiting = asyncio.ensure_future(stream.get(10))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert await stream.get(10) == "a"


async def test_a_generator_is_read_ahead() -> None:
    script = Script(["a", Wait(5), "b"])
    stream = LocalStream(script.stream())
    await asyncio.sleep(4)
    assert script.taken == ["a"]
    await asyncio.sleep(2)
    assert script.taken == ["a", "b"]
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert [await stream.get(1) for _ in range(3)] == ["a", "b", None]
    assert loop.time() == began


async def test_peek_shows_the_next_item_and_keeps_it() -> None:
    stream = LocalStream(Script(["a", "b", Wait(5), "c"]).stream())
    assert stream.peek() is None
    assert await stream.get(1) == "a"
    assert stream.peek() == "b"
    assert stream.peek() == "b"
    assert await stream.get(1) == "b"
    assert stream.peek() is None
    assert await stream.get(10) == "c"


async def test_items_before_an_error_are_returned_first() -> None:
    stream = LocalStream(Script(["a", "b", RuntimeError("gone")]).stream())
    assert await stream.get(1) == "a"
    await asyncio.sleep(10)
    assert await stream.get(1) == "b"
    with pytest.raises(RuntimeError, match="gone"):
        await stream.get(1)


async def test_a_slow_consumer_pauses_the_generator_and_loses_nothing() -> None:
    script = Script(list(range(1000)))
    stream = LocalStream(script.stream())
    first = await stream.get(1)
    await asyncio.sleep(60)
    assert len(script.taken) == MAX_WAITING
    got = [first]
    while (item := await stream.get(1)) is not None:
        got.append(item)
    assert got == list(range(1000))


async def test_closing_while_the_generator_is_paused_closes_it() -> None:
    script = Script(list(range(1000)))
    stream = LocalStream(script.stream())
    await stream.get(1)
    await asyncio.sleep(1)
    await stream.aclose()
    assert script.closed
    assert len(script.taken) == MAX_WAITING


async def test_the_producer_is_paused_at_256_items_and_resumed_at_half_of_them() -> None:
    stream = Counting()
    for number in range(MAX_WAITING - 1):
        stream.put(number)
    assert stream.calls == []
    for number in range(MAX_WAITING - 1, 1000):  # a paused producer may have more items in hand
        stream.put(number)
    assert stream.calls == [("pause", 0)]
    assert [await stream.get(0) for _ in range(1000)] == list(range(1000))
    assert stream.calls == [("pause", 0), ("resume", 1000 - MAX_WAITING // 2)]


async def test_only_the_first_end_counts_and_later_items_are_dropped() -> None:
    stream: ItemStream[str] = ItemStream()
    stream.put("a")
    stream.end(RuntimeError("first"))
    stream.put("b")
    stream.end(RuntimeError("second"))
    stream.end()
    assert await stream.get(0) == "a"
    with pytest.raises(RuntimeError, match="first"):
        await stream.get(0)


async def test_an_end_without_an_error_is_not_changed_by_a_later_error() -> None:
    stream: ItemStream[str] = ItemStream()
    stream.end()
    stream.end(RuntimeError("late"))
    assert await stream.get(0) is None


@pytest.mark.parametrize("error", [None, RuntimeError("gone")], ids=["end", "error"])
async def test_an_end_wakes_the_consumer(error: RuntimeError | None) -> None:
    loop = asyncio.get_running_loop()
    stream: ItemStream[str] = ItemStream()
    began = loop.time()
    loop.call_later(3, stream.end, error)
    if error is None:
        assert await stream.get(60) is None
    else:
        with pytest.raises(RuntimeError, match="gone"):
            await stream.get(60)
    assert loop.time() - began == pytest.approx(3)
