"""A streaming response closes its source whenever it ends, and sends headers as given."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from starlette.types import Message

from serve_app.api.stream_response import StreamResponse
from tests.support.http_client import SCOPE, Client
from tests.support.streams import Script, Wait


async def test_a_whole_body_is_sent_and_the_source_closed() -> None:
    script: Script[bytes] = Script([b"one", b"two"])
    client = Client()
    await client.read(StreamResponse(script.stream(), 200, {}))
    assert client.pieces == [b"one", b"two"]
    assert client.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert script.closed


async def test_the_source_is_closed_when_the_client_leaves_midway() -> None:
    script: Script[bytes] = Script([b"one", Wait(5), b"two"])
    client = Client()
    answering = asyncio.ensure_future(client.read(StreamResponse(script.stream(), 200, {})))
    await asyncio.sleep(1)
    closed_before = script.closed
    client.leave()
    await answering
    assert (closed_before, script.closed) == (False, True)
    assert client.body == b"one"


async def test_the_source_is_closed_when_sending_fails() -> None:
    script: Script[bytes] = Script([b"one", b"two"])
    client = Client()

    async def broken(message: Message) -> None:
        if message.get("body"):
            raise OSError("connection reset")

    with pytest.raises(OSError, match="connection reset"):
        await StreamResponse(script.stream(), 200, {})(SCOPE, client.receive, broken)
    assert script.closed


async def test_a_client_that_reads_nothing_for_a_minute_counts_as_gone(caplog: pytest.LogCaptureFixture) -> None:
    script: Script[bytes] = Script([b"one", b"two", b"three"])
    client, loop = Client(), asyncio.get_running_loop()
    began_s = loop.time()

    async def stalls_after_the_first(message: Message) -> None:
        if message.get("body") == b"two":
            await asyncio.Event().wait()
        await client.send(message)

    with caplog.at_level("WARNING", logger="ray.serve"):
        await StreamResponse(script.stream(), 200, {})(SCOPE, client.receive, stalls_after_the_first)
    assert loop.time() - began_s == pytest.approx(60)
    assert (client.pieces, script.closed) == ([b"one"], True)
    assert "read nothing for 60 s" in caplog.text


async def test_a_client_that_reads_a_piece_every_50_s_gets_them_all() -> None:
    script: Script[bytes] = Script([b"one", b"two", b"three"])
    client = Client()

    async def slow(message: Message) -> None:
        await asyncio.sleep(50)
        await client.send(message)

    await StreamResponse(script.stream(), 200, {})(SCOPE, client.receive, slow)
    assert client.pieces == [b"one", b"two", b"three"]


async def test_the_source_is_closed_when_it_fails() -> None:
    script: Script[bytes] = Script([b"one", RuntimeError("broken")])
    client = Client()
    with pytest.raises(RuntimeError, match="broken"):
        await client.read(StreamResponse(script.stream(), 200, {}))
    assert script.closed


async def test_the_source_is_closed_even_if_the_client_left_before_the_body_began() -> None:
    # A generator that never ran has no `finally` to run: closing the body alone would leave the source open.
    script: Script[bytes] = Script([b"one"])
    client, closed = Client(), asyncio.Event()

    async def close() -> None:
        closed.set()

    client.leave()
    await client.read(StreamResponse(script.stream(), 200, {}, close))
    assert not script.opened
    assert closed.is_set()


@pytest.mark.parametrize("headers", [{"x-one": "1"}, [(b"x-one", b"1")]], ids=["mapping", "raw pairs"])
async def test_headers_may_be_a_mapping_or_raw_pairs(
    headers: Mapping[str, str] | Sequence[tuple[bytes, bytes]],
) -> None:
    client = Client()
    await client.read(StreamResponse(Script([b"."]).stream(), 202, headers))
    assert (client.status, client.headers) == (202, [(b"x-one", b"1")])
