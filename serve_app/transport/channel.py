"""The token channel: a replica sends the items of a request to the calling ingress, over one TCP connection a request.

Serve's handle carries the call (queueing, choice of a replica, autoscaling, cancellation) and reports that a replica
has died. Items do not go through it: an item on a Serve stream costs about 0.3 ms of CPU on both sides together, a
frame on a socket half of that (docs/architecture.md).

A connection begins with the request's key, which only the called replica knows, and the replica's name. Frames follow:
4 bytes length of the payload (big endian), 1 byte kind, payload. The payload is bytes as they are, or one of a few
dataclasses in msgpack. A connection with the ingress's own key carries the replica's heartbeat instead, a byte a second
(`heartbeat.py`): a replica that is silent for too long is lost, with all its streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import struct
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final, cast

import msgspec

from cluster.supervision import Supervised
from router.signs import Signs
from serve_app.api.errors import ApiError, Failure
from serve_app.engine.interface import Admitted, Finished, HttpProgress, HttpRun, TokenBatch
from serve_app.transport.asgi_call import ResponseStart
from serve_app.transport.cancellation import cancel_and_wait
from serve_app.transport.heartbeat import BEAT_EVERY_S, LOST_AFTER_S, BeatTo, Heartbeats
from serve_app.transport.stream import ItemStream

logger = logging.getLogger("ray.serve")
Message = Admitted | Finished | Failure | ResponseStart | HttpRun | HttpProgress
Item = bytes | TokenBatch | Message

_HEADER: Final = struct.Struct(">IB")
_KEY_BYTES: Final = 16
_NAME: Final = struct.Struct(">B")
"""Length of a replica's name, which follows it, bytes."""
_BYTES: Final = 0
_END: Final = 1
_MESSAGES: Final[dict[int, type[Message]]] = {
    2: Admitted,
    3: Finished,
    4: Failure,
    5: ResponseStart,
    6: HttpRun,
    8: HttpProgress,
}
_BATCH: Final = 7
_BATCH_HEAD: Final = struct.Struct(">dI3dId")
"""Of a `TokenBatch`: `busy_s`, length of `ids` in bytes, the `Signs`; then `ids` and `events`."""
_KIND_OF: Final = {message: kind for kind, message in _MESSAGES.items()}
_KEY_WAIT_S: Final = 5.0
"""A connection that has not sent its key by then is closed, s."""

_CONNECT_S: Final = 5.0
"""Longest wait for the ingress to accept the connection, s."""
_CHECK_EVERY_S: Final = 2.0
"""Interval at which the ingress checks that it still listens, s."""
_SILENCE: Final = f"nothing was heard of the engine replica for {LOST_AFTER_S:g} s"
_BACKLOG: Final = 4096
"""Connections that may wait to be accepted: all requests of a burst connect at the same moment."""


@dataclass(frozen=True, slots=True)
class ReplyTo:
    """Where a replica sends the items of a request."""

    host: str
    port: int
    key: bytes
    called_s: float
    """When the ingress made the call, seconds since the epoch."""
    beat_key: bytes
    """Of the ingress: begins a connection that carries a heartbeat."""

    def greeting(self, replica: str) -> bytes:
        """Return what the connection of a replica of that name begins with."""
        return self.key + _named(replica)

    def beats(self, replica: str) -> BeatTo:
        """Return where a replica of that name sends its heartbeat while it answers."""
        return BeatTo(self.host, self.port, self.beat_key + _named(replica))


def _named(replica: str) -> bytes:
    name = replica.encode()[-255:]
    return _NAME.pack(len(name)) + name


async def send_items(reply_to: ReplyTo, replica: str, items: AsyncGenerator[Item, None]) -> Failure | None:
    """Send all items as fast as the ingress reads them, and close the generator, also if the ingress goes away.

    Args:
        reply_to: where to.
        replica: name of this replica, whose heartbeat the ingress expects.
        items: the stream.

    Returns:
        None if everything was sent, else the failure. It travels through Serve: it ends the stream if the connection
        broke, and nobody reads it if the client has left.
    """
    async with contextlib.aclosing(items):
        try:
            async with asyncio.timeout(_CONNECT_S):
                reader, writer = await asyncio.open_connection(reply_to.host, reply_to.port)
        except OSError as error:  # TimeoutError is one
            reason = f"the replica cannot connect to the ingress at {reply_to.host}:{reply_to.port}: {error!r}"
            return Failure("channel_failed", reason, status=502, retryable=True)
        sending = asyncio.ensure_future(_send(writer, reply_to.greeting(replica), items))
        # The ingress sends nothing. Its end of file means that the client has left, also while the engine is silent.
        leaving = asyncio.ensure_future(reader.read())
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            whole = sending.done() and sending.result()
        finally:
            try:
                await cancel_and_wait(sending, leaving)
            finally:
                writer.close()
    return None if whole else Failure("replica_lost", "the token channel broke", status=503, retryable=True)


async def _send(writer: asyncio.StreamWriter, greeting: bytes, items: AsyncGenerator[Item, None]) -> bool:
    """Return whether everything was sent."""
    writer.write(greeting)
    async for item in items:
        if not await _write(writer, _frame(item)):
            return False
    # At the end `drain` must wait until all bytes are sent: a replica that stops now would lose the rest.
    writer.transport.set_write_buffer_limits(high=0)
    return await _write(writer, _HEADER.pack(0, _END))


async def _write(writer: asyncio.StreamWriter, frame: bytes) -> bool:
    """Return whether the connection accepted the frame."""
    try:
        writer.write(frame)
        await writer.drain()
    except OSError:
        return False
    return True


def _frame(item: Item) -> bytes:
    if isinstance(item, bytes):
        return _HEADER.pack(len(item), _BYTES) + item
    if isinstance(item, TokenBatch):
        size = _BATCH_HEAD.size + len(item.ids) + len(item.events)
        head = _BATCH_HEAD.pack(item.busy_s, len(item.ids), *item.signs)
        return _HEADER.pack(size, _BATCH) + head + item.ids + item.events
    payload = msgspec.msgpack.encode(item)
    return _HEADER.pack(len(payload), _KIND_OF[type(item)]) + payload


class ReplicaStream(ItemStream[Item]):
    """The items of one request, from its replica's connection.

    Args:
        reply_to: where the replica connects to.
        channel: forgets this request when the stream is closed.
    """

    def __init__(self, reply_to: ReplyTo, channel: TokenChannel) -> None:
        super().__init__()
        self.reply_to = reply_to
        self._channel = channel
        self._transport: asyncio.Transport | None = None
        self._at_end: Callable[[], None] | None = None
        self._at_close: Callable[[], object] | None = None

    def on_end(self, call: Callable[[], None]) -> None:
        """Call this once when the stream ends, whatever ends it."""
        self._at_end = call

    def on_close(self, call: Callable[[], object]) -> None:
        """Call this when the consumer closes the stream."""
        self._at_close = call

    def end(self, error: BaseException | None = None) -> None:
        """See `ItemStream.end`."""
        super().end(error)
        if self._at_end is not None:
            call, self._at_end = self._at_end, None
            call()

    def connected(self, transport: asyncio.Transport) -> None:
        """Note the replica's connection."""
        self._transport = transport

    def lose(self, reason: str) -> None:
        """End the stream, as its replica is lost."""
        self.end(ApiError("replica_lost", reason, status=503, retryable=True))
        if self._transport is not None:
            self._transport.abort()

    async def aclose(self) -> None:
        """Take nothing more: the replica's next write fails."""
        self.end()
        self._channel.forget(self)
        if self._at_close is not None:
            self._at_close()
        if self._transport is not None:
            self._transport.abort()

    def _pause(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()


class TokenChannel:
    """The ingress's side: it listens, and matches each connection with the request whose key it sends."""

    def __init__(self) -> None:
        self._awaited: dict[bytes, ReplicaStream] = {}
        self._connected: dict[str, set[ReplicaStream]] = {}
        """By replica."""
        self._server: asyncio.Server | None = None
        self._beat_key = secrets.token_bytes(_KEY_BYTES)
        self._beats = Heartbeats()
        self.work = (
            Supervised("ingress: token channel", self._check),
            Supervised("ingress: heartbeats", self._lose_silent_replicas),
        )

    async def start(self, host: str) -> None:
        """Listen on a free port of `host`, an address of this node that replicas on other nodes reach."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), host, 0, backlog=_BACKLOG)
        self._address: tuple[str, int] = self._server.sockets[0].getsockname()[:2]

    async def _check(self) -> None:
        """Connect as a replica does. If nobody listens any more, listen again, on another port.

        uvloop closes a server for good if it cannot accept a connection, for example without a free file descriptor.
        """
        await asyncio.sleep(_CHECK_EVERY_S)
        assert self._server is not None, "not started"
        host, port = self._address
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, writer = await asyncio.open_connection(host, port)
            writer.close()
        except OSError as error:  # TimeoutError is one
            logger.error("the token channel at %s:%d accepts no connections, listening again: %r", host, port, error)
            self._server.close()
            await self.start(host)

    async def _lose_silent_replicas(self) -> None:
        await asyncio.sleep(BEAT_EVERY_S)
        for replica in self._beats.lost(set(self._connected)):
            streams = list(self._connected[replica])
            logger.warning("replica %s: %s; it has %d streams", replica, _SILENCE, len(streams))
            for stream in streams:
                stream.lose(_SILENCE)

    def stop(self) -> None:
        """Stop listening. Open connections stay open."""
        if self._server is not None:
            self._server.close()

    def open(self) -> ReplicaStream:
        """Return a stream for the items of one request. The caller closes it."""
        assert self._server is not None, "not started"
        reply_to = ReplyTo(*self._address, secrets.token_bytes(_KEY_BYTES), time.time(), self._beat_key)
        stream = ReplicaStream(reply_to, self)
        self._awaited[stream.reply_to.key] = stream
        return stream

    def claim(self, key: bytes, replica: str) -> ReplicaStream | None:
        """Return the stream with that key, which this replica answers from now on. A key is valid once."""
        stream = self._awaited.pop(key, None)
        if stream is not None:
            if replica not in self._connected:
                self._beats.heard(replica)
            self._connected.setdefault(replica, set()).add(stream)
        return stream

    def disconnected(self, replica: str, stream: ReplicaStream) -> None:
        """Forget the connection of a stream."""
        streams = self._connected[replica]
        streams.discard(stream)
        if not streams:
            del self._connected[replica]

    def is_beat_key(self, key: bytes) -> bool:
        """Return whether a connection with that key carries a heartbeat."""
        return secrets.compare_digest(key, self._beat_key)

    def heard(self, replica: str) -> None:
        """Note a beat."""
        self._beats.heard(replica)

    def forget(self, stream: ReplicaStream) -> None:
        """Drop a stream that nobody reads any more."""
        self._awaited.pop(stream.reply_to.key, None)


class _Connection(asyncio.Protocol):
    """One replica's connection: for one request, or with its heartbeat."""

    def __init__(self, channel: TokenChannel) -> None:
        self._channel = channel
        self._replica: str | None = None
        self._stream: ReplicaStream | None = None
        """None: it carries a heartbeat, or has not said yet what it carries."""
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport and are no subclass of it.
        self._transport = cast(asyncio.Transport, transport)
        self._key_timeout = asyncio.get_running_loop().call_later(_KEY_WAIT_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._replica is None and not self._greeted():
            return
        assert self._replica is not None
        if self._stream is not None:
            self._take_frames(self._stream)
        else:
            self._buffer.clear()
            self._channel.heard(self._replica)

    def _greeted(self) -> bool:
        """Take the key and the replica's name off the buffer. Return whether they are there, and the key is known."""
        start = _KEY_BYTES + _NAME.size
        end = start + self._buffer[_KEY_BYTES] if len(self._buffer) >= start else start
        if len(self._buffer) < max(end, start):
            return False
        self._key_timeout.cancel()
        key, replica = bytes(self._buffer[:_KEY_BYTES]), self._buffer[start:end].decode(errors="replace")
        del self._buffer[:end]
        if not self._channel.is_beat_key(key):
            self._stream = self._channel.claim(key, replica)
            if self._stream is None:
                self._transport.abort()
                return False
            self._stream.connected(self._transport)
        self._replica = replica
        return True

    def _take_frames(self, stream: ReplicaStream) -> None:
        start, buffer = 0, self._buffer
        while len(buffer) - start >= _HEADER.size:
            size, kind = _HEADER.unpack_from(buffer, start)
            end = start + _HEADER.size + size
            if len(buffer) < end:
                break
            payload = bytes(memoryview(buffer)[start + _HEADER.size : end])
            if kind == _BATCH:
                busy_s, ids, *signs = _BATCH_HEAD.unpack_from(payload)
                ids += _BATCH_HEAD.size
                stream.put(TokenBatch(payload[_BATCH_HEAD.size : ids], busy_s, payload[ids:], Signs(*signs)))
            elif kind == _BYTES:
                stream.put(payload)
            elif kind == _END:
                stream.end()
            else:
                stream.put(msgspec.msgpack.decode(payload, type=_MESSAGES[kind]))
            start = end
        del buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        self._key_timeout.cancel()
        if self._stream is not None and self._replica is not None:
            self._channel.disconnected(self._replica, self._stream)
            # After a complete stream this changes nothing: only the first end counts.
            self._stream.lose("the engine replica went away")
