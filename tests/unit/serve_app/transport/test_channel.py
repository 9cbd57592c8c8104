"""The token channel over real loopback TCP: whole streams, pieces of frames, and either side that goes away."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import pytest

from serve_app.api.errors import ApiError, Failure
from serve_app.api.sse import token_events
from serve_app.engine.interface import Admitted, Finished, SpecStats, Token
from serve_app.transport import channel as token_channel
from serve_app.transport.asgi_call import ResponseStart
from serve_app.transport.channel import Item, ReplicaStream, ReplyTo, TokenChannel, send_items
from serve_app.transport.stream import Tick
from sustainability.measured import Energy
from tests.support.real_loops import REAL_LOOPS
from tests.support.streams import Script, Wait

pytestmark = REAL_LOOPS

StreamT = TypeVar("StreamT")

PATIENCE_S = 20.0
"""A test that waits so long has failed, s."""
FOR_EVER = Wait(3600)
END = b"\0\0\0\0\1"
ADMITTED = Admitted()
START = ResponseStart(200, [(b"content-type", b"text/event-stream"), (b"x-odd", b"\xff\0\r\n")])
EVERY_KIND: list[Item] = [
    ADMITTED,
    token_events([Token("é力🙂\u2028", 1, -0.5, False)]),
    START,
    b"",
    bytes(range(256)),
    Finished("stop", 4, 3, queue_ms=0.125, spec=SpecStats(steps=2, draft_tokens=4, accepted_tokens=1), busy_s=0.25),
    Finished("stop", 4, 3, 0.0, SpecStats(), 0.25, 0.5, 0.75, Energy(12.5, 1.5)),
    Finished("stop", 4, 3, 0.0, SpecStats(), 0.25, energy=Energy(reason="no driver")),
    Finished("length", 0, 0, queue_ms=0.0, spec=SpecStats(reasons={"tau_stopped": 3}, stopped_by_tau=True), busy_s=0.0),
]
FAILURES = [Failure("engine_failed", "kein Speicher: 力🙂", 500, True), Failure("bad_request", "", 400, False)]
BROKEN = Failure("replica_lost", "the token channel broke", status=503, retryable=True)


@pytest.fixture
async def channel() -> AsyncIterator[TokenChannel]:
    channel = TokenChannel()
    await channel.start("127.0.0.1")
    yield channel
    channel.stop()


def frame(payload: bytes) -> bytes:
    """One item of bytes as a frame; see the docstring of `channel.py`."""
    return len(payload).to_bytes(4, "big") + b"\0" + payload


@dataclass
class Counted:
    """A stream of `count` numbered items that never waits; `taken` of them were read."""

    size: int
    count: int
    taken: int = 0
    closed: bool = False

    async def stream(self) -> AsyncGenerator[bytes, None]:
        try:
            for number in range(self.count):
                self.taken += 1
                yield number.to_bytes(4, "big") * (self.size // 4)
        finally:
            self.closed = True

    @property
    def left_early(self) -> bool:
        return self.closed and self.taken < self.count


@dataclass
class Sending(Generic[StreamT]):
    """A replica's running `send_items`."""

    source: StreamT
    task: asyncio.Task[Failure | None]

    async def result(self) -> Failure | None:
        return await asyncio.wait_for(asyncio.shield(self.task), PATIENCE_S)


def sending(reply_to: ReplyTo, *items: Item | Wait | Exception) -> Sending[Script[Item]]:
    script: Script[Item] = Script(items)
    return Sending(script, asyncio.ensure_future(send_items(reply_to, "r", script.stream())))


def counting(reply_to: ReplyTo, size: int, count: int) -> Sending[Counted]:
    numbers = Counted(size, count)
    return Sending(numbers, asyncio.ensure_future(send_items(reply_to, "r", numbers.stream())))


class Peer:
    """A replica's connection, driven by the test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def close(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        """End the connection with a reset, as the kernel may for a killed process."""
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def is_cut(self) -> bool:
        """Return whether the ingress ends the connection. It never sends anything."""
        try:
            return await asyncio.wait_for(self._reader.read(), PATIENCE_S) == b""
        except ConnectionError:
            return True


@asynccontextmanager
async def peer(reply_to: ReplyTo) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection(reply_to.host, reply_to.port)
    try:
        yield Peer(reader, writer)
    finally:
        writer.transport.abort()


async def got(stream: ReplicaStream, count: int) -> list[Item | Tick | None]:
    return [await stream.get(PATIENCE_S) for _ in range(count)]


async def rest(stream: ReplicaStream) -> list[Item | Tick]:
    """Everything up to the end."""
    items: list[Item | Tick] = []
    while (item := await stream.get(PATIENCE_S)) is not None:
        assert not isinstance(item, Tick)
        items.append(item)
    return items


async def assert_lost(stream: ReplicaStream) -> None:
    with pytest.raises(ApiError, match="the engine replica went away") as error:
        await stream.get(PATIENCE_S)
    assert (error.value.code, error.value.status, error.value.retryable) == ("replica_lost", 503, True)


async def standstill(counted: Counted) -> int:
    """Return how many items were taken, once no more are taken."""
    before = -1
    while before < counted.taken:
        before = counted.taken
        await asyncio.sleep(0.1)
    return before


async def test_items_of_every_kind_come_back_equal_and_in_order_and_then_the_end_for_ever(
    channel: TokenChannel,
) -> None:
    stream = channel.open()
    replica = sending(stream.reply_to, *EVERY_KIND)
    assert await got(stream, len(EVERY_KIND) + 2) == [*EVERY_KIND, None, None]
    assert await replica.result() is None
    assert (replica.source.taken, replica.source.closed) == (EVERY_KIND, True)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.code)
async def test_a_failure_ends_the_stream_with_the_same_error(channel: TokenChannel, failure: Failure) -> None:
    stream = channel.open()
    replica = sending(stream.reply_to, ADMITTED, failure, b"never read")
    assert await stream.get(PATIENCE_S) == ADMITTED
    with pytest.raises(ApiError) as error:
        await stream.get(PATIENCE_S)
    sent = (failure.code, failure.message, failure.status, failure.retryable)
    assert (error.value.code, error.value.message, error.value.status, error.value.retryable) == sent
    assert await replica.result() is None


@pytest.mark.parametrize("size", [0, 1, 255, 65_535, 65_536, 300_000])
async def test_bytes_of_every_size_come_back_equal(channel: TokenChannel, size: int) -> None:
    stream = channel.open()
    whole = bytes(range(256)) * (size // 256 + 1)
    items: list[Item] = [whole[:size], b"between", whole[:size][::-1]]
    sending(stream.reply_to, *items)
    assert await rest(stream) == items


async def test_an_answer_without_items_ends_properly(channel: TokenChannel) -> None:
    stream = channel.open()
    replica = sending(stream.reply_to)
    assert await stream.get(PATIENCE_S) is None
    assert await replica.result() is None


async def test_what_goes_over_the_wire_is_the_key_and_the_name_then_frames_then_the_end() -> None:
    wire: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def record(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire.set_result(await reader.read())
        writer.close()

    server = await asyncio.start_server(record, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert (
        await sending(ReplyTo("127.0.0.1", port, b"k" * 16, 0.0, b"b" * 16), b"one", b"", b"x" * 300).result() is None
    )
    assert await asyncio.wait_for(wire, PATIENCE_S) == (
        b"k" * 16 + b"\1r" + b"\0\0\0\3\0one" + b"\0\0\0\0\0" + b"\0\0\1\x2c\0" + b"x" * 300 + b"\0\0\0\0\1"
    )
    server.close()


async def test_a_key_is_16_bytes_that_no_other_request_has(channel: TokenChannel) -> None:
    keys = {channel.open().reply_to.key for _ in range(100)}
    assert len(keys) == 100
    assert {len(key) for key in keys} == {16}


def cuts(payload: bytes) -> Iterator[tuple[bytes, bytes]]:
    whole = frame(payload)
    return ((whole[:at], whole[at:]) for at in range(1, len(whole)))


async def test_a_frame_may_be_split_anywhere(channel: TokenChannel) -> None:
    stream = channel.open()
    pieces = list(cuts(b"split"))
    async with peer(stream.reply_to) as replica:
        await replica.write(stream.reply_to.greeting("r") + frame(b"mark"))
        for first, second in pieces:
            # The previous item has arrived, so the ingress has read up to here when the second piece is sent.
            assert await stream.get(PATIENCE_S) == b"mark"
            await replica.write(first)
            await asyncio.sleep(0)
            assert stream.peek() is None
            await replica.write(second + frame(b"mark"))
            assert await stream.get(PATIENCE_S) == b"split"
        await replica.write(END)
        assert await rest(stream) == [b"mark"]
    assert len(pieces) == 9


async def test_a_stream_may_arrive_byte_by_byte(channel: TokenChannel) -> None:
    stream = channel.open()
    async with peer(stream.reply_to) as replica:
        for byte in stream.reply_to.greeting("r") + frame(b"one") + frame(b"") + frame(b"two") + END:
            await replica.write(bytes([byte]))
            await asyncio.sleep(0)
        assert await rest(stream) == [b"one", b"", b"two"]


async def test_many_frames_may_arrive_at_once(channel: TokenChannel) -> None:
    # More than a stream holds: items that have arrived are not lost when the sender is paused.
    items = [str(number).encode() for number in range(5000)]
    stream = channel.open()
    async with peer(stream.reply_to) as replica:
        await replica.write(stream.reply_to.greeting("r") + b"".join(map(frame, items)) + END)
        assert await rest(stream) == items


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("last", [b"", frame(b"half a frame")[:9], frame(b"")[:4]], ids=["whole", "payload", "header"])
async def test_a_replica_that_goes_away_midway_ends_its_items_with_a_retryable_error(
    channel: TokenChannel, how: str, last: bytes
) -> None:
    stream = channel.open()
    async with peer(stream.reply_to) as replica:
        await replica.write(stream.reply_to.greeting("r") + frame(b"one") + frame(b"two") + last)
        # One write is one segment here: when "one" has been read, so has the rest, which a reset would discard.
        assert await stream.get(PATIENCE_S) == b"one"
        getattr(replica, how)()
        assert await stream.get(PATIENCE_S) == b"two"
        for _ in range(2):
            await assert_lost(stream)


async def test_a_replica_that_goes_away_at_once_is_a_retryable_error(channel: TokenChannel) -> None:
    stream = channel.open()
    async with peer(stream.reply_to) as replica:
        await replica.write(stream.reply_to.greeting("r"))
        replica.close()
        await assert_lost(stream)


async def test_a_replica_that_goes_away_after_the_end_changes_nothing(channel: TokenChannel) -> None:
    stream = channel.open()
    async with peer(stream.reply_to) as replica:
        await replica.write(stream.reply_to.greeting("r") + frame(b"one") + END)
        assert await rest(stream) == [b"one"]
        replica.reset()
    other = channel.open()
    sending(other.reply_to, b"two")
    assert await rest(other) == [b"two"]  # by then the ingress has seen the reset
    assert await stream.get(0) is None


async def test_a_stream_that_raises_is_a_lost_replica_here_and_raises_there(channel: TokenChannel) -> None:
    stream = channel.open()
    replica = sending(stream.reply_to, b"one", RuntimeError("a bug"))
    assert await stream.get(PATIENCE_S) == b"one"
    await assert_lost(stream)
    with pytest.raises(RuntimeError, match="a bug"):
        await replica.result()
    assert replica.source.closed


async def test_a_frame_of_an_unknown_kind_is_a_lost_replica(channel: TokenChannel) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    stream = channel.open()
    async with peer(stream.reply_to) as replica:
        await replica.write(stream.reply_to.greeting("r") + frame(b"one") + b"\0\0\0\0\xff")
        assert await stream.get(PATIENCE_S) == b"one"
        await assert_lost(stream)
        assert await replica.is_cut()


async def test_a_replica_that_cannot_connect_names_the_address_and_never_calls_the_engine() -> None:
    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        port = nobody_listens.getsockname()[1]
        replica = sending(ReplyTo("127.0.0.1", port, b"k" * 16, 0.0, b"b" * 16), b"one")
        failure = await replica.result()
    assert failure is not None
    assert (failure.code, failure.status, failure.retryable) == ("channel_failed", 502, True)
    assert failure.message.startswith(f"the replica cannot connect to the ingress at 127.0.0.1:{port}: ")
    assert not replica.source.opened


async def test_a_connection_with_a_wrong_key_is_closed_and_disturbs_no_request(channel: TokenChannel) -> None:
    stream = channel.open()
    right = sending(stream.reply_to, b"one", Wait(0.05), b"two")
    async with peer(stream.reply_to) as stranger:
        await stranger.write(bytes(16) + frame(b"foreign") + END)
        assert await stranger.is_cut()
    assert await rest(stream) == [b"one", b"two"]
    assert await right.result() is None


async def test_a_wrong_key_invalidates_no_right_one(channel: TokenChannel) -> None:
    stream = channel.open()
    almost = stream.reply_to.key[:-1] + bytes([stream.reply_to.key[-1] ^ 1])
    async with peer(stream.reply_to) as stranger:
        await stranger.write(almost + frame(b"foreign") + END)
        assert await stranger.is_cut()
    sending(stream.reply_to, b"one")
    assert await rest(stream) == [b"one"]


async def test_a_key_is_valid_once(channel: TokenChannel) -> None:
    stream = channel.open()
    async with peer(stream.reply_to) as first, peer(stream.reply_to) as second:
        await first.write(stream.reply_to.greeting("r") + frame(b"one"))
        assert await stream.get(PATIENCE_S) == b"one"
        await second.write(stream.reply_to.greeting("r") + frame(b"again") + END)
        assert await second.is_cut()
        await first.write(frame(b"two") + END)
        assert await rest(stream) == [b"two"]


@pytest.mark.parametrize("named", [0, 1, 15])
async def test_a_connection_without_a_key_in_time_is_closed(
    channel: TokenChannel, monkeypatch: pytest.MonkeyPatch, named: int
) -> None:
    assert token_channel._KEY_WAIT_S == 5
    monkeypatch.setattr(token_channel, "_KEY_WAIT_S", 0.2)
    stream, other = channel.open(), channel.open()
    began_s = time.monotonic()
    async with peer(stream.reply_to) as replica, peer(other.reply_to) as silent:
        await replica.write(stream.reply_to.greeting("r"))
        await silent.write(other.reply_to.key[:named])
        assert await silent.is_cut()
        assert 0.195 < time.monotonic() - began_s < 4
        # A connection that has sent its key may then be silent for longer.
        await replica.write(frame(b"one") + END)
        assert await rest(stream) == [b"one"]
    # The request whose key arrived in part still waits.
    sending(other.reply_to, b"two")
    assert await rest(other) == [b"two"]


async def test_closing_the_stream_stops_a_replica_that_sends(channel: TokenChannel) -> None:
    stream = channel.open()
    replica = counting(stream.reply_to, 100, 200_000)
    assert len(await got(stream, 3)) == 3
    await stream.aclose()
    await stream.aclose()
    assert await replica.result() == BROKEN
    assert replica.source.left_early


async def test_closing_the_stream_stops_a_paused_replica(channel: TokenChannel) -> None:
    stream = channel.open()
    replica = counting(stream.reply_to, 50_000, 2000)
    assert isinstance(await stream.get(PATIENCE_S), bytes)
    await standstill(replica.source)
    assert not replica.source.closed
    await stream.aclose()
    assert await replica.result() == BROKEN
    assert replica.source.left_early


async def test_closing_the_stream_stops_a_replica_whose_engine_is_silent(channel: TokenChannel) -> None:
    stream = channel.open()
    replica = sending(stream.reply_to, b"one", FOR_EVER)
    assert await stream.get(PATIENCE_S) == b"one"
    await stream.aclose()
    assert await replica.result() == BROKEN
    assert replica.source.closed


async def test_nothing_comes_after_the_stream_was_closed(channel: TokenChannel) -> None:
    stream = channel.open()
    async with peer(stream.reply_to) as replica:
        await replica.write(stream.reply_to.greeting("r") + frame(b"one"))
        assert await stream.get(PATIENCE_S) == b"one"
        await stream.aclose()
        assert await replica.is_cut()
    assert await stream.get(PATIENCE_S) is None


async def test_a_stream_that_is_closed_before_the_replica_connects_stops_it_too(channel: TokenChannel) -> None:
    stream = channel.open()
    await stream.aclose()
    replica = counting(stream.reply_to, 100, 200_000)
    assert await replica.result() == BROKEN
    assert replica.source.left_early
    assert await stream.get(PATIENCE_S) is None


async def test_a_stream_that_is_closed_before_a_silent_replica_connects_stops_it_too(channel: TokenChannel) -> None:
    stream = channel.open()
    await stream.aclose()
    replica = sending(stream.reply_to, FOR_EVER)
    assert await replica.result() == BROKEN
    assert replica.source.closed


async def test_a_slow_consumer_pauses_the_replica_and_loses_nothing(channel: TokenChannel) -> None:
    stream = channel.open()
    replica = counting(stream.reply_to, 20_000, 5000)
    first = await stream.get(PATIENCE_S)
    ahead = await standstill(replica.source)
    # 256 items in the stream and what the two sockets hold: a few MB of 100.
    assert 256 <= ahead < 1500
    assert not replica.task.done()
    received = [first, *await rest(stream)]
    assert [int.from_bytes(item[:4], "big") for item in received if isinstance(item, bytes)] == list(range(5000))
    assert {len(item) for item in received if isinstance(item, bytes)} == {20_000}
    assert await replica.result() is None
    assert replica.source.closed


async def test_a_paused_replica_that_goes_away_loses_no_item(channel: TokenChannel) -> None:
    items: Sequence[Item] = [str(number).encode() for number in range(1000)]
    stream = channel.open()
    replica = sending(stream.reply_to, *items, RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        await replica.result()
    assert await got(stream, 1000) == items
    await assert_lost(stream)


@pytest.mark.parametrize("before", [[], [b"one"]], ids=["at once", "midway"])
async def test_cancelling_the_replica_closes_its_stream(channel: TokenChannel, before: list[Item]) -> None:
    stream = channel.open()
    replica = sending(stream.reply_to, ADMITTED, *before, FOR_EVER)
    assert await got(stream, 1 + len(before)) == [ADMITTED, *before]
    replica.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await replica.task
    assert replica.source.closed
    await assert_lost(stream)


async def test_cancelling_a_replica_again_does_not_interrupt_the_closing_of_its_stream(
    channel: TokenChannel,
) -> None:
    # Seen under load: the connection was cut, then Serve cancelled the call while the engine's request was being
    # aborted; one of a hundred requests ran on.
    closing, let_go, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def items() -> AsyncGenerator[Item, None]:
        try:
            yield ADMITTED
            await asyncio.Event().wait()
        finally:
            closing.set()
            await let_go.wait()
            closed.set()

    stream = channel.open()
    replica = asyncio.ensure_future(send_items(stream.reply_to, "r", items()))
    assert await got(stream, 1) == [ADMITTED]
    await stream.aclose()
    await closing.wait()
    for _ in range(3):
        replica.cancel()
        await asyncio.sleep(0)
    let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await replica
    assert closed.is_set()


async def test_cancelling_a_paused_replica_closes_its_stream(channel: TokenChannel) -> None:
    stream = channel.open()
    replica = counting(stream.reply_to, 50_000, 2000)
    assert isinstance(await stream.get(PATIENCE_S), bytes)
    await standstill(replica.source)
    replica.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await replica.task
    assert replica.source.left_early
    await stream.aclose()


async def test_requests_at_once_do_not_mix(channel: TokenChannel) -> None:
    streams = [channel.open() for _ in range(50)]
    replicas = []
    for number, stream in enumerate(streams):
        # Later requests are faster, so that they overtake earlier ones.
        items: list[bytes | Wait] = []
        for step in range(20):
            items += [f"{number}/{step}".encode(), Wait((50 - number) / 50_000)]
        replicas.append(sending(stream.reply_to, *items))
    for number, stream in enumerate(streams):
        assert await rest(stream) == [f"{number}/{step}".encode() for step in range(20)]
    assert [await replica.result() for replica in replicas] == [None] * 50


async def test_a_burst_of_connections_loses_none(channel: TokenChannel) -> None:
    streams = [channel.open() for _ in range(400)]
    replicas = [sending(stream.reply_to, b"one") for stream in streams]
    # More than a listener's usual backlog. Above it the kernel drops connections that their clients believe open.
    assert await asyncio.gather(*(stream.get(PATIENCE_S) for stream in streams)) == [b"one"] * 400
    assert [await replica.result() for replica in replicas] == [None] * 400


async def test_a_failing_request_disturbs_no_other(channel: TokenChannel) -> None:
    steady, closed, lost = channel.open(), channel.open(), channel.open()
    going = sending(steady.reply_to, b"one", Wait(0.1), b"two")
    sending(closed.reply_to, b"closed", FOR_EVER)
    failing = sending(lost.reply_to, b"lost", RuntimeError("a bug"))
    assert [await stream.get(PATIENCE_S) for stream in (steady, closed, lost)] == [b"one", b"closed", b"lost"]
    await closed.aclose()
    await assert_lost(lost)
    with pytest.raises(RuntimeError, match="a bug"):
        await failing.result()
    assert await rest(steady) == [b"two"]
    assert await going.result() is None


async def test_a_stopped_channel_accepts_no_connection_and_keeps_the_open_ones() -> None:
    channel = TokenChannel()
    await channel.start("127.0.0.1")
    stream, late = channel.open(), channel.open()
    async with peer(stream.reply_to) as replica:
        await replica.write(stream.reply_to.greeting("r") + frame(b"one"))
        assert await stream.get(PATIENCE_S) == b"one"
        channel.stop()
        failure = await sending(late.reply_to, b"late").result()
        assert failure is not None
        assert failure.code == "channel_failed"
        await replica.write(frame(b"two") + END)
        assert await rest(stream) == [b"two"]


async def test_a_channel_whose_server_was_closed_listens_again(
    channel: TokenChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_channel, "_CHECK_EVERY_S", 0.01)
    await channel._check()
    before = channel.open().reply_to
    assert channel._server is not None
    channel._server.close()
    assert await send_items(before, "r", Script([ADMITTED]).stream()) is not None
    await channel._check()
    stream = channel.open()
    sending = asyncio.ensure_future(send_items(stream.reply_to, "r", Script([ADMITTED]).stream()))
    assert await stream.get(PATIENCE_S) == ADMITTED
    assert await sending is None


async def test_the_check_is_no_request_and_leaves_a_listening_server_alone(
    channel: TokenChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_channel, "_CHECK_EVERY_S", 0.01)
    before = channel._server
    for _ in range(3):
        await channel._check()
    assert channel._server is before
