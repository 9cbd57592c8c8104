"""Run one HTTP request through an ASGI application in this process, and stream its response."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message

from serve_app.fairness.claims import ANYBODY, Claim
from serve_app.transport.cancellation import cancel_and_wait

logger = logging.getLogger("ray.serve")

Headers = Sequence[tuple[bytes, bytes]]

_LEAVE_S = 0.5
"""Longest time for an application to end by itself after the disconnect message, s."""


@dataclass(frozen=True, slots=True)
class HttpCall:
    """A whole request: path, headers and body."""

    method: str
    path: str
    headers: Headers
    body: bytes
    sequences: int = 1
    """Answers that the request asks for."""
    claim: Claim = ANYBODY
    """In whose name it asks for room."""


@dataclass(frozen=True, slots=True)
class ResponseStart:
    """Status and headers of the response; body chunks follow."""

    status: int
    headers: Headers


@dataclass(slots=True)
class _Outbox:
    """What the application has sent and the consumer has not read. Waiting body chunks are joined."""

    ready: asyncio.Event = field(default_factory=asyncio.Event)
    start: ResponseStart | None = None
    chunks: list[bytes] = field(default_factory=list)
    done: bool = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.start = ResponseStart(message["status"], list(message.get("headers", [])))
        elif message["type"] == "http.response.body":
            self.chunks.append(message.get("body", b""))
            self.done = not message.get("more_body", False)
        self.ready.set()


async def call_asgi(
    app: ASGIApp, call: HttpCall, context: Context | None = None, tick_s: float | None = None
) -> AsyncGenerator[ResponseStart | bytes, None]:
    """Yield the response to one request: `ResponseStart`, then body chunks; nothing (b"") after `tick_s` of silence.

    The application runs in `context`, or in a copy of the caller's.

    Closing the generator sends the application a disconnect message. If it does not end then, it is cancelled.

    Raises:
        the error that the application raises before the end of its response.
    """
    outbox, left, sent = _Outbox(), asyncio.Event(), False

    async def receive() -> Message:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": call.body, "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def run() -> None:
        await app(_scope(call), receive, outbox.send)

    task = asyncio.create_task(run(), context=context)
    task.add_done_callback(lambda _: outbox.ready.set())
    try:
        while True:
            if not await _is_set(outbox.ready, tick_s):
                yield b""
                continue
            outbox.ready.clear()
            start, outbox.start = outbox.start, None
            if start is not None:
                yield start
            chunks, outbox.chunks = outbox.chunks, []
            body = b"".join(chunks)
            if body:
                yield body
            # Chunks may have arrived while the consumer handled the last one, so this is the end only without them.
            if not outbox.chunks and (outbox.done or task.done()):
                break
        if not outbox.done:
            await task
    finally:
        left.set()
        # Do not cancel at once: vLLM runs a handler in its own task, which only the disconnect message ends.
        try:
            await asyncio.wait({task}, timeout=_LEAVE_S)
        finally:
            await cancel_and_wait(task)
        if outbox.done and not task.cancelled() and (error := task.exception()) is not None:
            # Starlette answers with a 500 and raises the error again, for its server to log.
            logger.error("%s %s was answered, then failed", call.method, call.path, exc_info=error)


async def _is_set(event: asyncio.Event, within_s: float | None) -> bool:
    """Wait for an event; return whether it came in time."""
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _scope(call: HttpCall) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": call.method,
        "scheme": "http",
        "path": call.path,
        "raw_path": call.path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": list(call.headers),
        "client": None,
        "server": None,
        "state": {},
    }
