"""One request through an ASGI application in this process: start, whole body, failures, and a caller that leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from serve_app.transport.asgi_call import HttpCall, ResponseStart, call_asgi

CALL = HttpCall("POST", "/v1/completions", [(b"content-type", b"text/plain"), (b"x-request-id", b"r1")], b"the body")
START: Message = {"type": "http.response.start", "status": 206, "headers": [(b"x-one", b"1")]}


def chunk(body: bytes, more: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def test_the_application_gets_the_request_and_its_response_comes_as_start_and_body() -> None:
    async def echo(request: Request) -> JSONResponse:
        return JSONResponse(
            [request.method, request.url.path, request.headers["x-request-id"], (await request.body()).decode()], 201
        )

    app = Starlette(routes=[Route("/v1/completions", echo, methods=["POST"])])
    start, *body = [item async for item in call_asgi(app, CALL)]
    assert isinstance(start, ResponseStart)
    assert start.status == 201
    assert (b"content-type", b"application/json") in start.headers
    assert b"".join(piece for piece in body if isinstance(piece, bytes)) == (
        b'["POST","/v1/completions","r1","the body"]'
    )


async def test_waiting_chunks_are_joined() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        for piece in (b"a", b"b", b"c"):
            await send(chunk(piece, more=True))
        await send(chunk(b"", more=False))

    assert [item async for item in call_asgi(app, CALL)] == [ResponseStart(206, [(b"x-one", b"1")]), b"abc"]


async def test_a_slow_application_is_relayed_piece_by_piece() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        for piece in (b"a", b"b"):
            await asyncio.sleep(1)
            await send(chunk(piece, more=True))
        await asyncio.sleep(1)
        await send(chunk(b"", more=False))

    loop = asyncio.get_running_loop()
    began = loop.time()
    times = [(round(loop.time() - began, 6), item) async for item in call_asgi(app, CALL)]
    assert times == [(0, ResponseStart(206, [(b"x-one", b"1")])), (1, b"a"), (2, b"b")]


async def test_nothing_is_lost_when_the_application_ends_while_the_consumer_is_busy() -> None:
    go_on = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send(chunk(b"first ", more=True))
        await go_on.wait()
        await send(chunk(b"second ", more=True))
        await send(chunk(b"last", more=False))

    body = b""
    async for item in call_asgi(app, CALL):
        if isinstance(item, bytes):
            body += item
            go_on.set()
            await asyncio.sleep(1)  # the application ends meanwhile
    assert body == b"first second last"


async def test_starlettes_streaming_response_is_relayed_whole_to_a_consumer_that_lags() -> None:
    async def numbers(request: Request) -> StreamingResponse:
        async def body() -> AsyncIterator[bytes]:
            for number in range(50):
                yield str(number).encode()
                await asyncio.sleep(0)

        return StreamingResponse(body(), media_type="text/plain")

    app = Starlette(routes=[Route("/v1/completions", numbers, methods=["POST"])])
    body = b""
    async for item in call_asgi(app, CALL):
        if isinstance(item, bytes):
            body += item
            await asyncio.sleep(0.1)
    assert body == b"".join(str(number).encode() for number in range(50))


async def test_an_application_that_raises_before_answering_raises_here() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("no model")

    with pytest.raises(RuntimeError, match="no model"):
        [item async for item in call_asgi(app, CALL)]


async def test_an_application_that_raises_midway_raises_after_what_it_had_sent() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await send(chunk(b"half", more=True))
        raise RuntimeError("the other half is gone")

    call = call_asgi(app, CALL)
    assert isinstance(await anext(call), ResponseStart)
    assert await anext(call) == b"half"
    with pytest.raises(RuntimeError, match="the other half is gone"):
        await anext(call)


async def test_closing_midway_tells_the_application_that_the_client_left() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((await receive())["type"])
        await send(START)
        listening = asyncio.ensure_future(receive())
        try:
            while True:
                await send(chunk(b"more ", more=True))
                await asyncio.sleep(1)
        finally:
            seen.append((await listening)["type"])

    call = call_asgi(app, CALL)
    assert isinstance(await anext(call), ResponseStart)
    assert await anext(call) == b"more "
    await call.aclose()
    assert seen == ["http.request", "http.disconnect"]


async def test_leaving_ends_what_the_application_runs_in_a_task_of_its_own() -> None:
    """vLLM's `with_cancellation`: cancelling the application itself would leave the handler running in the engine."""
    working, cancelled = asyncio.Event(), asyncio.Event()

    async def handler() -> None:
        working.set()
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def listen(receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        tasks = [asyncio.create_task(handler()), asyncio.create_task(listen(receive))]
        _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()

    call = call_asgi(app, CALL)
    reading = asyncio.ensure_future(anext(call))
    await working.wait()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await call.aclose()

    assert cancelled.is_set()


async def test_closing_before_the_answer_cancels_the_application() -> None:
    running, cancelled = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    call = call_asgi(app, CALL)
    waiting = asyncio.ensure_future(anext(call))
    await running.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert cancelled.is_set()
