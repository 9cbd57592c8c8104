"""A streaming response closes its source whenever it ends, and sends headers as given."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest
from starlette.types import Message

from serve_app.sse_response import ClosingStream
from tests.support.streams import Script, Wait

SCOPE: MutableMapping[str, Any] = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}}


class Client:
    """The server's side of one connection: what was sent, and when the client leaves."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.left = asyncio.Event()

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


async def test_a_whole_body_is_sent_and_the_source_closed() -> None:
    script, client = Script([b"one", b"two"]), Client()
    await ClosingStream(script.stream(), 200, {})(SCOPE, client.receive, client.send)
    assert client.body() == b"onetwo"
    assert client.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert script.closed


async def test_the_source_is_closed_when_the_client_leaves_midway() -> None:
    script, client = Script([b"one", Wait(5), b"two"]), Client()
    answering = asyncio.ensure_future(ClosingStream(script.stream(), 200, {})(SCOPE, client.receive, client.send))
    await asyncio.sleep(1)
    assert not script.closed
    client.left.set()
    await answering
    assert script.closed
    assert client.body() == b"one"


async def test_the_source_is_closed_when_sending_fails() -> None:
    script, client = Script([b"one", b"two"]), Client()

    async def broken(message: Message) -> None:
        if message.get("body"):
            raise OSError("connection reset")
        client.sent.append(message)

    with pytest.raises(OSError, match="connection reset"):
        await ClosingStream(script.stream(), 200, {})(SCOPE, client.receive, broken)
    assert script.closed


async def test_the_source_is_closed_when_it_fails() -> None:
    script, client = Script([b"one", RuntimeError("broken")]), Client()
    with pytest.raises(RuntimeError, match="broken"):
        await ClosingStream(script.stream(), 200, {})(SCOPE, client.receive, client.send)
    assert script.closed


async def test_headers_may_be_a_mapping_or_raw_pairs() -> None:
    for headers in ({"x-one": "1"}, [(b"x-one", b"1")]):
        client = Client()
        await ClosingStream(Script([b"."]).stream(), 202, headers)(SCOPE, client.receive, client.send)  # type: ignore[arg-type]
        assert client.sent[0]["status"] == 202
        assert client.sent[0]["headers"] == [(b"x-one", b"1")]
