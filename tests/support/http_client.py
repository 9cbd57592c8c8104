"""The server's side of one connection to a Starlette response, scripted."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

from starlette.responses import Response
from starlette.types import Message

# What Ray Serve's HTTP server tells an application; from 2.4 on Starlette would not listen for a disconnect.
SCOPE: MutableMapping[str, Any] = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}}


class Client:
    """What was sent, and when: `leave` disconnects."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.times_s: list[float] = []
        self._left = asyncio.Event()

    def leave(self) -> None:
        self._left.set()

    async def read(self, response: Response) -> None:
        """Take the response until it ends or the client has left."""
        await response(SCOPE, self.receive, self.send)

    async def receive(self) -> Message:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        self.times_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0)  # a server's `send` lets others run

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return list(self.sent[0]["headers"])

    @property
    def pieces(self) -> list[bytes]:
        return [message["body"] for message in self.sent[1:] if message["body"]]

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)
