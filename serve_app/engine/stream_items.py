"""The items that a replica streams to the ingress: an engine's answer, with its failures as data."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
from collections.abc import AsyncGenerator
from typing import Final

import orjson
from starlette.types import ASGIApp

from serve_app.api.errors import Failure
from serve_app.api.sse import token_events
from serve_app.engine.http_runs import RunWatch
from serve_app.engine.interface import (
    Admitted,
    Engine,
    EngineError,
    Finished,
    GenerationRequest,
    HttpProgress,
    HttpRun,
    TokenBatch,
    TokenStep,
    pack_ids,
)
from serve_app.transport.asgi_call import HttpCall, ResponseStart, call_asgi

logger = logging.getLogger("ray.serve")

StreamItem = Admitted | TokenBatch | Finished | Failure
PROGRESS_EVERY_S: Final = 0.25
"""How often a replica says what its engine has done for a `/v1` request, s: the count of an answer that is cut is so
exact, and a stream has four more items a second."""
_ERROR: Final = b'data: {"error"'
"""How vLLM's error event begins on OpenAI's routes."""
_ERROR_EVENT: Final = re.compile(rb'(?:\A|(?<=\n\n))(?:data: \{"error"|event: error)')
"""The same in the midst of a stream, and on Anthropic's routes: it does not say that the client may retry."""


async def stream_items(engine: Engine, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
    """Stream one request: `Admitted`, tokens, `Finished`. A `Failure` may come at any point, and is the last."""
    try:
        async with contextlib.aclosing(engine.generate(request)) as items:
            async for item in items:
                yield _batch(item) if isinstance(item, TokenStep) else item
    except EngineError as error:
        yield Failure.of(error)
    except Exception:
        # A fault of ours or of vLLM's, of any kind. The replica is still there, so it reports the failure itself.
        logger.exception("request %s failed in the engine", request.request_id)
        yield _failure(engine)


async def http_items(
    engine: Engine, app: ASGIApp, call: HttpCall
) -> AsyncGenerator[ResponseStart | bytes | HttpProgress | HttpRun | Failure, None]:
    """Stream one answer of the engine's HTTP application. A `Failure` may come at any point, and is the last.

    The `HttpRun` of a whole answer comes before its last bytes: clients leave once they have read these. What the
    engine has done comes with it, before a `Failure`, and in between.
    """
    watch = RunWatch(call.sequences)
    async with contextlib.aclosing(_http_items(engine, app, call, watch)) as items:
        told_s, loop = -math.inf, asyncio.get_running_loop()
        async for item in items:
            now_s = loop.time()
            is_due = isinstance(item, HttpRun | Failure) or now_s - told_s >= PROGRESS_EVERY_S
            if is_due and (progress := watch.progress()) is not None:
                told_s = now_s
                yield progress
            if item != b"":
                yield item


async def _http_items(
    engine: Engine, app: ASGIApp, call: HttpCall, watch: RunWatch
) -> AsyncGenerator[ResponseStart | bytes | HttpRun | Failure, None]:
    """Stream the answer without its progress; a tick is b""."""
    try:
        answer = refusals_first(errors_first(call_asgi(app, call, watch.context(), PROGRESS_EVERY_S)), watch)
        async with contextlib.aclosing(answer) as items:
            async for item in items:
                if isinstance(item, ResponseStart):
                    if item.status >= 500 and engine.dead:
                        yield _failure(engine)  # vLLM's 500 does not say that the client may retry
                        return
                elif engine.dead and (error := _ERROR_EVENT.search(item)) is not None:
                    if before := item[: error.start()]:
                        yield before
                    yield _failure(engine)
                    return
                # Not at a tick: the engine may be done before the response has begun.
                elif item and (run := watch.take()) is not None:
                    yield run
                yield item
    except EngineError as refusal:
        yield Failure.of(refusal)
    except Exception:
        # vLLM's application answers errors itself where it can; it lets any kind through.
        logger.exception("the engine's HTTP application failed")
        yield _failure(engine)


async def refusals_first(
    items: AsyncGenerator[ResponseStart | bytes, None], watch: RunWatch
) -> AsyncGenerator[ResponseStart | bytes, None]:
    """Return the same response, but a stream whose request the engine refuses as that refusal.

    vLLM begins a stream of the responses route before it asks the engine, and writes what the engine says to a stream
    of messages as an event that says something else. So a stream is held back until the engine has its request.

    Raises:
        EngineError: the engine refused the request.
    """
    held: list[ResponseStart | bytes] = []
    streams = True
    try:
        async with contextlib.aclosing(items):
            async for item in items:
                if isinstance(item, ResponseStart):
                    streams = item.status == 200
                held.append(item)
                if watch.is_admitted or not streams:
                    for each in held:
                        yield each
                    held.clear()
    except Exception:
        if watch.refusal is None or watch.is_admitted:
            for each in held:
                yield each
            raise
    if watch.refusal is not None and streams and not watch.is_admitted:
        raise watch.refusal
    for each in held:
        yield each


def _batch(step: TokenStep) -> TokenBatch:
    return TokenBatch(pack_ids(step.ids), step.busy_s, token_events(step.tokens), step.signs)


def _failure(engine: Engine) -> Failure:
    if engine.dead:
        return Failure("engine_dead", "the engine has died", status=503, retryable=True)
    return Failure("engine_failed", "the engine failed", status=500, retryable=True)


async def errors_first(
    items: AsyncGenerator[ResponseStart | bytes, None],
) -> AsyncGenerator[ResponseStart | bytes, None]:
    """Return the same response, but a stream whose first event is an error as that error with its HTTP status.

    vLLM sends status 200 for a stream and then checks what depends on the engine (structured outputs, logprobs, what
    drafts exclude), so a refusal comes as the first event. Clients expect an error status, and the same request without
    `stream` gets one. The start of a response is held back until its first piece is there.
    """
    start: ResponseStart | None = None
    async with contextlib.aclosing(items):
        async for item in items:
            if isinstance(item, ResponseStart):
                start = item
                continue
            if start is not None and item:
                if start.status == 200 and item.startswith(_ERROR):
                    body = orjson.loads(item.split(b"\n\n", 1)[0].removeprefix(b"data: "))
                    yield ResponseStart(body["error"]["code"], [(b"content-type", b"application/json")])
                    yield orjson.dumps(body)
                    return
                yield start
                start = None
            yield item
        if start is not None:
            yield start
