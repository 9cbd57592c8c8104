"""What an engine does for one HTTP request, noted from whichever task its work is done in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from serve_app.api.errors import Failure
from serve_app.engine.http_runs import RunWatch, current_run
from serve_app.engine.interface import Engine, EngineError, Finished, HttpProgress, HttpRun, SpecStats
from serve_app.engine.stream_items import PROGRESS_EVERY_S, http_items
from serve_app.transport.asgi_call import HttpCall, ResponseStart
from sustainability.measured import Energy

END = Finished("stop", 4, 3, 0.0, SpecStats(1, 2, 1), 0.5)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_run_is_taken_once_with_the_times_since_it_began() -> None:
    clock = Clock()
    watch = RunWatch(1, clock)
    for at_s, note in ((1.0, watch.admitted), (3.0, watch.token), (4.0, watch.token)):
        clock.now_s = at_s
        note()
    assert watch.take() is None
    watch.finished(END)
    clock.now_s = 6.0
    assert watch.take() == HttpRun(END, since_admitted_s=5.0, since_first_token_s=3.0, completion_tokens=3)
    assert watch.take() is None


def test_several_answers_are_one_run_with_the_longest_and_the_drafts_of_all() -> None:
    watch = RunWatch(3)
    watch.admitted()
    watch.finished(END, "shared")
    watch.finished(Finished("length", 4, 2, 0.0, SpecStats(3, 9, 5), 1.5), "shared")
    assert watch.take() is None
    watch.finished(Finished("length", 5, 8, 0.0, SpecStats(1, 1, 0), 0.25), "alone")
    run = watch.take()
    assert run is not None
    assert (run.finished.completion_tokens, run.finished.finish_reason) == (8, "length")
    assert (run.finished.spec.steps, run.finished.spec.draft_tokens, run.finished.spec.accepted_tokens) == (4, 10, 5)
    assert run.finished.busy_s == 1.75
    assert run.completion_tokens == 13
    assert run.since_first_token_s is None


def test_the_busy_time_so_far_is_that_of_each_record_once() -> None:
    watch = RunWatch(3)
    for busy_s, record in ((0.25, "shared"), (0.5, "shared"), (1.0, "alone"), (0.75, "shared")):
        watch.token(1, busy_s, record)
    assert watch.progress() == HttpProgress(0, 4, 1.75)
    assert watch.progress() is None


def test_a_request_that_engages_no_engine_is_no_run() -> None:
    assert RunWatch(1).take() is None


async def items_of(app: Starlette, sequences: int = 1) -> list[Any]:
    call = HttpCall("POST", "/v1/x", [(b"content-type", b"application/json")], b"{}", sequences)
    return [item async for item in http_items(cast(Engine, SimpleNamespace(dead=False)), app, call)]


def app_of(answer: Any) -> Starlette:
    return Starlette(routes=[Route("/v1/x", answer, methods=["POST"])])


async def test_the_run_comes_before_the_last_bytes_also_from_a_task_of_its_own() -> None:
    async def work() -> None:
        run = current_run()
        assert run is not None
        run.token()
        await asyncio.sleep(0)
        run.finished(END)

    async def answer(request: Request) -> Response:
        async def body() -> AsyncGenerator[bytes, None]:
            run = current_run()
            assert run is not None
            run.admitted()
            yield b"first"
            await asyncio.create_task(work())
            yield b"last"

        return StreamingResponse(body())

    assert current_run() is None
    start, *rest = await items_of(app_of(answer))
    assert isinstance(start, ResponseStart)
    first, progress, run, last = rest
    assert (first, progress, run.finished, last) == (b"first", HttpProgress(0, 1), END, b"last")
    assert current_run() is None


async def test_a_whole_answer_has_its_run_after_the_start() -> None:
    async def answer(request: Request) -> Response:
        run = current_run()
        assert run is not None
        run.admitted()
        run.finished(END)
        return JSONResponse({})

    start, run, body = await items_of(app_of(answer))
    assert (type(start), run.finished, body) == (ResponseStart, END, b"{}")


@pytest.mark.parametrize("raises", [True, False], ids=["raised", "written as an event"])
async def test_a_stream_that_the_engine_refuses_after_it_began_is_the_refusal(raises: bool) -> None:
    async def answer(request: Request) -> Response:
        async def body() -> AsyncGenerator[bytes, None]:
            yield b"event: response.created\n\n"
            run = current_run()
            assert run is not None
            run.refusal = EngineError("overloaded", "the queue is full", status=503, retryable=True)
            if raises:
                raise ValueError("the queue is full")
            yield b"event: error\n\n"

        return StreamingResponse(body())

    assert await items_of(app_of(answer)) == [Failure("overloaded", "the queue is full", 503, True)]


async def test_a_stream_is_held_back_until_the_engine_has_its_request() -> None:
    async def answer(request: Request) -> Response:
        async def body() -> AsyncGenerator[bytes, None]:
            yield b"created"
            await asyncio.sleep(0.01)
            run = current_run()
            assert run is not None
            run.admitted()
            yield b"token"

        return StreamingResponse(body())

    start, *pieces = await items_of(app_of(answer))
    assert (start.status, pieces) == (200, [b"created", b"token"])


async def test_a_whole_answer_that_takes_long_says_how_far_it_is_with_no_byte_of_it() -> None:
    async def answer(request: Request) -> Response:
        run = current_run()
        assert run is not None
        run.admitted(5)
        run.admitted()  # another answer to the same prompt
        for _ in range(4):
            await asyncio.sleep(PROGRESS_EVERY_S)
            run.token(2)
        await asyncio.sleep(2.5 * PROGRESS_EVERY_S)
        run.finished(END)
        run.finished(END)
        return JSONResponse({})

    items = await items_of(app_of(answer), sequences=2)
    told = [item for item in items if isinstance(item, HttpProgress)]
    assert told[0].prompt_tokens == 5
    assert told[-1] == HttpProgress(5, 8)
    assert [item.completion_tokens for item in told] == sorted({item.completion_tokens for item in told})
    assert len(told) >= 3
    start, run, body = [item for item in items if not isinstance(item, HttpProgress)]
    assert (type(start), type(run), body) == (ResponseStart, HttpRun, b"{}")


async def test_an_answer_that_fails_says_before_what_it_took() -> None:
    async def answer(request: Request) -> Response:
        async def body() -> AsyncGenerator[bytes, None]:
            run = current_run()
            assert run is not None
            run.admitted(5)
            yield b"first"
            await asyncio.sleep(PROGRESS_EVERY_S / 2)
            run.token(3)
            raise RuntimeError("the engine failed")

        return StreamingResponse(body())

    *_, progress, failure = await items_of(app_of(answer))
    assert (progress, type(failure)) == (HttpProgress(5, 3), Failure)


async def test_a_stream_whose_first_event_is_an_error_is_that_error_also_after_a_while() -> None:
    async def answer(request: Request) -> Response:
        async def body() -> AsyncGenerator[bytes, None]:
            run = current_run()
            assert run is not None
            run.admitted(5)
            await asyncio.sleep(3 * PROGRESS_EVERY_S)
            yield b'data: {"error": {"code": 400, "message": "no"}}\n\n'

        return StreamingResponse(body())

    items = [item for item in await items_of(app_of(answer)) if not isinstance(item, HttpProgress)]
    assert items[0].status == 400


async def test_a_response_whose_engine_is_never_asked_is_passed_on() -> None:
    async def answer(request: Request) -> Response:
        return JSONResponse({"input_tokens": 3})

    assert (await items_of(app_of(answer)))[1:] == [b'{"input_tokens":3}']


def test_the_joules_of_several_answers_add_up() -> None:
    watch = RunWatch(2)
    watch.admitted()
    watch.finished(replace(END, energy=Energy(10.0, 1.0)), "one")
    watch.finished(replace(END, energy=Energy(20.0, 2.0)), "other")
    run = watch.take()
    assert run is not None
    assert run.finished.energy == Energy(30.0, 3.0)
