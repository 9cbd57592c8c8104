"""Send a fuzzed request, and read what comes back as a strict HTTP client does."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import Final

import h11

from bench.fuzzing.case import Case
from bench.load.client import HOST

_READ_BYTES: Final = 65_536
_MOST_EVENT_BYTES: Final = 1_000_000
"""Longest response head that is read."""
_GRACE_S: Final = 0.05
"""How long a client that has all its answers waits for one too many, s."""


@dataclass(slots=True)
class Answer:
    """One response."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes = b""
    complete: bool = False
    """Whether its end was read."""

    def all(self, name: bytes) -> list[str]:
        """Return the values of a header."""
        return [value.decode("latin-1") for key, value in self.headers if key == name]

    def one(self, name: bytes) -> str:
        """Return the first value of a header; empty: it has none."""
        return next(iter(self.all(name)), "")


@dataclass(slots=True)
class Exchange:
    """What came of one request."""

    case: Case
    answers: list[Answer] = field(default_factory=list)
    unreadable: str = ""
    """What a strict client could not read; empty: nothing."""
    hung: bool = False
    """Whether the server neither answered nor closed in time."""
    took_s: float = 0.0


class _Reader:
    """Reads the responses to one request, or to several in a row."""

    def __init__(self, method: str) -> None:
        self.answers: list[Answer] = []
        self._method = method if method in ("HEAD", "CONNECT") else "GET"
        self._begin()

    @property
    def between(self) -> bool:
        """Whether all responses that began have ended."""
        return all(answer.complete for answer in self.answers)

    def feed(self, data: bytes) -> None:
        """Take bytes; empty: the server has closed.

        Raises:
            h11.RemoteProtocolError: this is no response.
        """
        if not data and self.between:
            return
        self._http.receive_data(data)
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Response):
                headers = tuple((bytes(key), bytes(value)) for key, value in event.headers)
                self.answers.append(Answer(event.status_code, headers))
            elif isinstance(event, h11.Data):
                self.answers[-1].body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self.answers[-1].complete = True
                rest, _ = self._http.trailing_data
                self._begin()
                if not rest:
                    return
                self._http.receive_data(rest)
            elif event in (h11.NEED_DATA, h11.PAUSED) or isinstance(event, h11.ConnectionClosed):
                return

    def _begin(self) -> None:
        # h11 reads a response only after its request, of which just the method counts.
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MOST_EVENT_BYTES)
        self._http.send(h11.Request(method=self._method, target="/", headers=[("Host", "x")]))
        self._http.send(h11.EndOfMessage())


async def exchange(case: Case, port: int, within_s: float) -> Exchange:
    """Send the request on a connection of its own, and read until its answers are whole or the server closes.

    Args:
        case: the request.
        port: of the server, on loopback.
        within_s: after this time the server counts as hanging, s.
    """
    done, began_s = Exchange(case), time.monotonic()
    reader = _Reader(case.method)
    done.answers = reader.answers
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(within_s):
            incoming, writer = await asyncio.open_connection(HOST, port)
            # A server may answer, and close, before it has read all.
            sending = asyncio.ensure_future(_send(case, writer))
            try:
                await _read(case, incoming, reader)
            finally:
                sending.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await sending
    except TimeoutError:
        done.hung = True
    except h11.RemoteProtocolError as error:
        done.unreadable = str(error)
    finally:
        if writer is not None:
            writer.transport.abort()
        done.took_s = time.monotonic() - began_s
    return done


async def _send(case: Case, writer: asyncio.StreamWriter) -> None:
    for number, piece in enumerate(case.pieces):
        if number:
            await asyncio.sleep(case.pause_s)
        writer.write(piece)
        await writer.drain()
    if case.half_closes:
        writer.write_eof()


async def _read(case: Case, incoming: asyncio.StreamReader, reader: _Reader) -> None:
    received = 0
    if case.leaves_after == 0 and not case.half_closes:
        await asyncio.sleep(_GRACE_S)  # so that the server has the request
        return
    while True:
        waits_s = _GRACE_S if len(reader.answers) >= case.answers and reader.between else None
        try:
            async with asyncio.timeout(waits_s):
                data = await incoming.read(_READ_BYTES)
        except TimeoutError:
            if waits_s is None or asyncio.current_task() is None:
                raise
            return
        except OSError:  # reset
            return
        reader.feed(data)
        received += len(data)
        if not data or (case.leaves_after is not None and received >= case.leaves_after > 0):
            return
