"""A replica that is gone without notice is lost after five seconds; one whose event loop stalls is not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator

import pytest

from serve_app.api.errors import ApiError
from serve_app.engine.engine_watch import STALLED_AFTER_S
from serve_app.transport import channel as token_channel
from serve_app.transport import heartbeat
from serve_app.transport.channel import Item, TokenChannel, send_items
from serve_app.transport.heartbeat import BeatTo, Heartbeats, HeartbeatThread
from tests.support.real_loops import REAL_LOOPS

PATIENCE_S = 20.0
REPLICAS = {"one", "other"}


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_replica_that_was_not_heard_of_for_five_seconds_is_lost() -> None:
    clock = Clock()
    beats = Heartbeats(clock)
    for second in range(12):
        clock.now_s = float(second)
        beats.heard("other")
        if second <= 4:
            beats.heard("one")
        lost = beats.lost(REPLICAS)
        assert lost == ({"one"} if second > 9 else set())


def test_after_a_pause_of_this_process_nobody_is_lost_before_what_was_sent_is_read() -> None:
    clock = Clock()
    beats = Heartbeats(clock)
    beats.heard("one")
    beats.lost({"one"})
    clock.now_s = 60.0
    assert beats.lost({"one"}) == set()
    for second in (61.0, 62.0, 63.0):
        clock.now_s = second
        assert beats.lost({"one"}) == set()
    clock.now_s = 64.5
    assert beats.lost({"one"}) == {"one"}


def test_a_replica_without_streams_is_forgotten_and_begins_anew() -> None:
    clock = Clock()
    beats = Heartbeats(clock)
    beats.heard("one")
    clock.now_s = 1.0
    beats.lost(set())
    clock.now_s = 2.0
    assert beats.lost({"one"}) == set()
    clock.now_s = 3.0
    beats.heard("one")
    assert beats.lost({"one"}) == set()


@pytest.fixture
async def channel(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TokenChannel]:
    """A channel that gives a replica up after half a second."""
    monkeypatch.setattr(heartbeat, "LOST_AFTER_S", 0.5)
    monkeypatch.setattr(heartbeat, "BEAT_EVERY_S", 0.1)
    monkeypatch.setattr(token_channel, "BEAT_EVERY_S", 0.1)
    channel = TokenChannel()
    await channel.start("127.0.0.1")
    for work in channel.work:
        work.start()
    yield channel
    for work in channel.work:
        work.stop()
    channel.stop()


async def silent() -> AsyncGenerator[Item, None]:
    yield b"one"
    await asyncio.Event().wait()


@REAL_LOOPS
async def test_the_streams_of_a_silent_replica_are_lost(channel: TokenChannel) -> None:
    streams = [channel.open(), channel.open()]
    sending = [asyncio.ensure_future(send_items(stream.reply_to, "one", silent())) for stream in streams]
    for stream in streams:
        assert await stream.get(PATIENCE_S) == b"one"
    for stream in streams:
        with pytest.raises(ApiError, match="nothing was heard of the engine replica for 5 s") as lost:
            await asyncio.wait_for(stream.get(PATIENCE_S), PATIENCE_S)
        assert (lost.value.code, lost.value.retryable) == ("replica_lost", True)
    for task in sending:
        failure = await asyncio.wait_for(task, PATIENCE_S)
        assert failure is not None


@REAL_LOOPS
async def test_a_replica_that_beats_keeps_its_streams_though_they_are_silent(channel: TokenChannel) -> None:
    stream = channel.open()
    thread = HeartbeatThread(STALLED_AFTER_S)
    thread.start()
    with thread.stream_to(stream.reply_to.beats("one")):
        sending = asyncio.ensure_future(send_items(stream.reply_to, "one", silent()))
        assert await stream.get(PATIENCE_S) == b"one"
        ended = asyncio.ensure_future(stream.get(PATIENCE_S))
        done, _ = await asyncio.wait({ended}, timeout=2)  # four times as long as a silent one is kept
        assert not done
    with pytest.raises(ApiError, match="nothing was heard"):  # its last stream has ended for the replica
        await asyncio.wait_for(ended, PATIENCE_S)
    await asyncio.wait_for(sending, PATIENCE_S)
    thread.stop()


@REAL_LOOPS
async def test_the_thread_goes_on_while_the_event_loop_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_EVERY_S", 0.5)
    beats: asyncio.Queue[float] = asyncio.Queue()
    times: list[float] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(5) == b"hello"
        while await reader.read(1):
            beats.put_nowait(0.0)
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    thread = HeartbeatThread(STALLED_AFTER_S)
    thread.start()
    with thread.stream_to(BeatTo("127.0.0.1", server.sockets[0].getsockname()[1], b"hello")):
        await asyncio.wait_for(beats.get(), PATIENCE_S)
        time.sleep(1.6)  # noqa: ASYNC251 - the stall
        times += [await asyncio.wait_for(beats.get(), 0.25) for _ in range(2)]
    assert len(times) == 2
    thread.stop()
    server.close()


@REAL_LOOPS
async def test_a_replica_that_has_stalled_for_minutes_beats_no_more_until_it_goes_on(channel: TokenChannel) -> None:
    clock = Clock()
    thread = HeartbeatThread(STALLED_AFTER_S, clock)
    thread.start()
    stream = channel.open()
    with thread.stream_to(stream.reply_to.beats("one")):
        sending = asyncio.ensure_future(send_items(stream.reply_to, "one", silent()))
        assert await stream.get(PATIENCE_S) == b"one"
        clock.now_s = STALLED_AFTER_S
        ended = asyncio.ensure_future(stream.get(PATIENCE_S))
        done, _ = await asyncio.wait({ended}, timeout=1)  # twice as long as a silent one is kept
        assert not done
        clock.now_s += 1
        with pytest.raises(ApiError, match="nothing was heard of the engine replica"):
            await asyncio.wait_for(ended, PATIENCE_S)
        await asyncio.wait_for(sending, PATIENCE_S)
        thread.pulse()
        stream = channel.open()
        sending = asyncio.ensure_future(send_items(stream.reply_to, "one", silent()))
        assert await stream.get(PATIENCE_S) == b"one"
        ended = asyncio.ensure_future(stream.get(PATIENCE_S))
        done, _ = await asyncio.wait({ended}, timeout=1)
        assert not done
    thread.stop()
    await stream.aclose()
    await asyncio.wait_for(sending, PATIENCE_S)


def test_an_ingress_that_is_gone_does_not_end_the_thread() -> None:
    thread = HeartbeatThread(STALLED_AFTER_S)
    thread.start()
    with thread.stream_to(BeatTo("127.0.0.1", 9, b"hello")):
        time.sleep(1.5)
        assert thread._thread.is_alive()
    thread.stop()
    thread._thread.join(PATIENCE_S)
    assert not thread._thread.is_alive()
