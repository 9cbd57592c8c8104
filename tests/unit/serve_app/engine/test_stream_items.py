"""What a replica sends of an engine's stream: token events encoded, the engine's errors as data, and it is closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from serve_app.api.errors import Failure
from serve_app.engine.http_runs import current_run
from serve_app.engine.interface import (
    Admitted,
    Engine,
    EngineError,
    EngineItem,
    Finished,
    HttpProgress,
    HttpRun,
    SpecStats,
    Token,
)
from serve_app.engine.stream_items import PROGRESS_EVERY_S, StreamItem, errors_first, http_items, stream_items
from serve_app.transport.asgi_call import HttpCall, ResponseStart
from tests.support.requests import generation
from tests.support.streams import Script, Wait, batch, step

ADMITTED = Admitted()
STEPS = [step(Token("Pa", 1, None, False), Token("ris", 2, -0.5, True)), step(Token("!", 3, None, False))]
EVENTS: list[StreamItem] = [batch(*each.tokens) for each in STEPS]
FINISHED = Finished("stop", 4, 3, queue_ms=0.0, spec=SpecStats(), busy_s=0.5)
CALL = HttpCall("POST", "/v1/completions", [], b"{}")
OUT_OF_MEMORY = EngineError("engine_failed", "out of memory", status=500, retryable=True)


class ScriptedEngine:
    """An engine whose only stream is a script."""

    def __init__(self, items: Sequence[EngineItem | Wait | Exception], dead: bool = False) -> None:
        self.dead = dead
        self.script: Script[EngineItem] = Script(items)
        self.asked: list[object] = []

    def generate(self, request: object) -> AsyncGenerator[EngineItem, None]:
        self.asked.append(request)
        return self.script.stream()

    def stream(self, request: Any = None) -> AsyncGenerator[StreamItem, None]:
        return stream_items(cast(Engine, self), request or generation())


async def test_each_step_of_tokens_is_one_item_of_whole_events_and_the_rest_goes_as_it_is() -> None:
    engine, request = ScriptedEngine([ADMITTED, *STEPS, FINISHED]), generation()
    assert [item async for item in engine.stream(request)] == [ADMITTED, *EVENTS, FINISHED]
    assert engine.asked == [request]
    assert engine.script.closed


@pytest.mark.parametrize("before", [0, 1, 3], ids=["at once", "admitted", "midway"])
async def test_an_engines_error_is_a_failure_as_the_last_item(before: int) -> None:
    items: list[EngineItem] = [ADMITTED, *STEPS]
    sent: list[StreamItem] = [ADMITTED, *EVENTS]
    engine = ScriptedEngine([*items[:before], OUT_OF_MEMORY])
    failure = Failure("engine_failed", "out of memory", 500, True)
    assert [item async for item in engine.stream()] == [*sent[:before], failure]
    assert engine.script.closed


@pytest.mark.parametrize(
    ("dead", "failure"),
    [
        (False, Failure("engine_failed", "the engine failed", 500, True)),
        (True, Failure("engine_dead", "the engine has died", 503, True)),
    ],
    ids=["bug", "dead"],
)
async def test_any_other_error_is_a_failure_and_no_lost_replica(
    dead: bool, failure: Failure, caplog: pytest.LogCaptureFixture
) -> None:
    engine = ScriptedEngine([ADMITTED, RuntimeError("a bug")], dead)
    assert [item async for item in engine.stream()] == [ADMITTED, failure]
    assert engine.script.closed
    assert "a bug" in caplog.text


@pytest.mark.parametrize("begun", [False, True])
async def test_an_error_that_the_http_application_raises_is_a_failure_and_no_lost_replica(
    begun: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise RuntimeError("a bug")

    items = [item async for item in http_items(cast(Engine, ScriptedEngine([])), app, CALL)]
    sent = [ResponseStart(200, []), b"half"] if begun else []
    assert items == [*sent, Failure("engine_failed", "the engine failed", 500, True)]
    assert "a bug" in caplog.text


async def test_an_error_that_the_http_application_answers_is_passed_on_though_it_is_raised_too() -> None:
    async def broken(request: Request) -> None:
        raise RuntimeError("a bug")

    async def answer(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 500)

    app = Starlette(routes=[Route("/v1/completions", broken, methods=["POST"])], exception_handlers={500: answer})
    start, body = [item async for item in http_items(cast(Engine, ScriptedEngine([])), app, CALL)]
    assert isinstance(start, ResponseStart)
    assert (start.status, body) == (500, b'{"error":"a bug"}')


async def test_the_http_application_of_a_dead_engine_says_that_the_client_may_retry() -> None:
    app = JSONResponse({"error": "EngineCore encountered an issue"}, 500)
    items = [item async for item in http_items(cast(Engine, ScriptedEngine([], dead=True)), app, CALL)]
    assert items == [Failure("engine_dead", "the engine has died", 503, True)]


@pytest.mark.parametrize("error", [b'data: {"error": {"code": 500}}\n\n', b'event: error\ndata: {"type": "error"}\n\n'])
@pytest.mark.parametrize("dead", [False, True])
async def test_a_stream_of_the_http_application_whose_engine_dies_says_so_too(error: bytes, dead: bool) -> None:
    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"data: {}\n\n"
        yield error

    app = StreamingResponse(pieces(), media_type="text/event-stream")
    items = [item async for item in http_items(cast(Engine, ScriptedEngine([], dead=dead)), app, CALL)]
    failure = Failure("engine_dead", "the engine has died", 503, True)
    # Pieces that come together are one item.
    assert items[1:] == ([b"data: {}\n\n", failure] if dead else [b"data: {}\n\n" + error])


async def test_an_answer_that_is_late_after_its_engine_was_done_begins_with_its_start() -> None:
    """The engine's run is complete before the application has written anything, and a tick comes in between."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        run = current_run()
        assert run is not None
        run.admitted()
        run.finished(FINISHED)
        await asyncio.sleep(3 * PROGRESS_EVERY_S)
        await JSONResponse({})(scope, receive, send)

    engine = ScriptedEngine([])
    items = [item async for item in http_items(cast(Engine, engine), app, CALL)]
    kinds = [type(item) for item in items if not isinstance(item, HttpProgress)]
    assert kinds == [ResponseStart, HttpRun, bytes]


async def test_closing_it_midway_closes_the_engines_stream_at_once() -> None:
    engine = ScriptedEngine([ADMITTED, *STEPS, FINISHED])
    stream = engine.stream()
    await anext(stream)
    assert await anext(stream) == EVENTS[0]
    await stream.aclose()
    assert engine.script.closed
    assert engine.script.taken == [ADMITTED, STEPS[0]]


# --- an error before the first token of a stream is an HTTP error ---

STREAM = ResponseStart(200, [(b"content-type", b"text/event-stream; charset=utf-8")])
ERROR = b'data: {"error": {"message": "no such grammar", "type": "BadRequestError", "param": null, "code": 400}}\n\n'
DONE = b"data: [DONE]\n\n"

Item = ResponseStart | bytes


async def taken(items: list[Item]) -> tuple[list[Item], Script[Item]]:
    script: Script[Item] = Script(items)
    return [item async for item in errors_first(script.stream())], script


@pytest.mark.parametrize("pieces", [[ERROR, DONE], [ERROR + DONE]], ids=["apart", "joined"])
async def test_an_error_as_the_first_event_is_an_http_error(pieces: list[bytes]) -> None:
    items, script = await taken([STREAM, *pieces])
    assert items == [
        ResponseStart(400, [(b"content-type", b"application/json")]),
        b'{"error":{"message":"no such grammar","type":"BadRequestError","param":null,"code":400}}',
    ]
    assert script.closed


@pytest.mark.parametrize(
    "items",
    [
        [STREAM, b'data: {"id": "1"}\n\n', b'data: {"id": "1"}\n\n', DONE],
        [STREAM, b'data: {"id": "1"}\n\n', ERROR, DONE],
        [ResponseStart(400, [(b"content-type", b"application/json")]), b'{"error": {"code": 400}}'],
        [ResponseStart(204, [])],
        [STREAM],
    ],
    ids=["tokens", "an error later", "an http error", "no body", "an empty stream"],
)
async def test_any_other_response_is_passed_on(items: list[Item]) -> None:
    assert (await taken(items))[0] == items
