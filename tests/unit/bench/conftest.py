"""A tiny SSE server on loopback, so that the client is tested against real sockets without Ray or vLLM."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest

Chunked = Callable[..., list[bytes]]
Serve = Callable[..., AbstractAsyncContextManager["Fake"]]


class Fake:
    """What the server saw, and where it listens."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.requests: list[bytes] = []
        self.open_connections = 0
        self.idle = asyncio.Event()
        """Set while no connection is open."""


@pytest.fixture
def serve() -> Serve:
    """`serve(writes, pause_s)`: answers every request with these raw writes, `pause_s` apart, then closes."""

    @contextlib.asynccontextmanager
    async def start(writes: list[bytes], pause_s: float = 0.0) -> AsyncIterator[Fake]:
        fake = Fake(0)

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            fake.open_connections += 1
            fake.idle.clear()
            try:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                fake.requests.append(head + await reader.readexactly(length))
                for data in writes:
                    writer.write(data)
                    await writer.drain()
                    await asyncio.sleep(pause_s)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                fake.open_connections -= 1
                if not fake.open_connections:
                    fake.idle.set()
                writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        fake.port = server.sockets[0].getsockname()[1]
        async with server:
            yield fake

    return start


@pytest.fixture
def chunked() -> Chunked:
    """`chunked(*pieces)`: the writes of an HTTP/1.1 response with each piece as a chunk of its own."""

    def writes(*pieces: bytes) -> list[bytes]:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        return [head, *(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces), b"0\r\n\r\n"]

    return writes
