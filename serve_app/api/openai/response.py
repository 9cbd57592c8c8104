"""The response to an OpenAI request: the engine's own, passed on as it arrives."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
from starlette.responses import Response

from router.registry import TierName
from serve_app.api.errors import RETRY_LATER, ApiError, error_data, incomplete_stream, raise_if_late
from serve_app.api.routing import SPEC_HEADER
from serve_app.api.sse import PING, PING_EVERY_S, STATUS_EVERY_S
from serve_app.api.stream_response import SSE_HEADERS, StreamResponse
from serve_app.config import AppConfig
from serve_app.pool.view import PoolView
from serve_app.transport.asgi_call import ResponseStart
from serve_app.transport.client import ResponseStream
from serve_app.transport.stream import TICK

_HOP_HEADERS: Final = frozenset((b"content-length", b"transfer-encoding", b"connection", b"date", b"server"))
"""Headers that every hop sets for itself. The engine's other response headers go to the client."""
_DONE: Final = b"data: [DONE]\n\n"
"""Ends a stream, also after an error, as vLLM's streams do: a client waits for it."""


@dataclass(slots=True)
class OpenAIExchange:
    """One OpenAI request from its call to its last byte: `respond` returns the response.

    Args:
        tier: answers it.
        planned: what will be done about speculation, for a response header.
        request_id: for error bodies and the response header.
        streaming: whether the client requested SSE.
        items: the replica's response.
        config: limits.
        pool: knows when waiting for a cold tier is useless.
        arrived_s: monotonic clock at arrival, s.
    """

    tier: TierName
    planned: Mapping[str, Any]
    request_id: str
    streaming: bool
    items: ResponseStream
    config: AppConfig
    pool: PoolView
    arrived_s: float

    async def respond(self) -> Response:
        """Return the engine's response; for a stream that must wait long, one that pings until it comes.

        Raises:
            ApiError: the tier cannot serve the request.
        """
        try:
            start = await self._start(STATUS_EVERY_S)
            while start is None and not self.streaming:
                start = await self._start(STATUS_EVERY_S)
            if start is None:
                return StreamResponse(self._late_stream(), 200, self._headers("text/event-stream"), self.items.aclose)
            extra = self._headers(None) | (RETRY_LATER if start.status == 503 else {})
            replaced = _HOP_HEADERS | {key.encode() for key in extra}
            headers = [pair for pair in start.headers if pair[0].lower() not in replaced]
            headers += [(key.encode(), value.encode()) for key, value in extra.items()]
            return StreamResponse(self._body(), start.status, headers, self.items.aclose)
        except BaseException:
            await self.items.aclose()
            raise

    async def _start(self, wait_s: float) -> ResponseStart | None:
        """Return the response's start; None if it does not come in time."""
        item = await self.items.get(wait_s)
        if isinstance(item, ResponseStart):
            return item
        if item is not TICK:
            raise incomplete_stream()
        self.pool.raise_if_failed(self.tier)
        self._raise_if_late()
        return None

    async def _body(self) -> AsyncIterator[bytes]:
        try:
            while (item := await self.items.get(PING_EVERY_S)) is not None:
                self._raise_if_late()
                if isinstance(item, bytes):
                    yield item
                elif item is TICK and self.streaming:
                    yield PING
        except ApiError as error:
            if not self.streaming:
                raise  # which cuts the connection: a part of the body has been sent
            yield self._error_chunk(error)
        finally:
            await self.items.aclose()

    async def _late_stream(self) -> AsyncIterator[bytes]:
        """The body after an early 200: pings, then what the engine answers, also if that is an error."""
        try:
            yield PING
            while (start := await self._start(PING_EVERY_S)) is None:
                yield PING
            if start.status == 200:
                async for piece in self._body():
                    yield piece
            else:
                # An error body is one line of JSON. SDKs raise it as an SSE `data` line.
                body = b"".join([piece async for piece in self._body() if piece != PING])
                yield b"data: " + body.replace(b"\n", b" ") + b"\n\n" + _DONE
        except ApiError as error:
            yield self._error_chunk(error)
        finally:
            await self.items.aclose()

    def _headers(self, media_type: str | None) -> dict[str, str]:
        planned = json.dumps(self.planned)  # ASCII, as headers must be
        headers = {"x-power-lever-tier": self.tier, SPEC_HEADER: planned, "x-request-id": self.request_id}
        if self.streaming:
            headers |= SSE_HEADERS
        return headers | ({"content-type": media_type} if media_type else {})

    def _error_chunk(self, error: ApiError) -> bytes:
        return b"data: " + orjson.dumps({"error": error_data(error, self.request_id)}) + b"\n\n" + _DONE

    def _raise_if_late(self) -> None:
        raise_if_late(time.monotonic() - self.arrived_s, self.config.limits.request_timeout_s)
