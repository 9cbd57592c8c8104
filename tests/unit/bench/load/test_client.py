from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from bench.load.client import Request, fetch, request_for, run_batch, run_flood, total_tokens_per_s
from bench.load.servers import free_port
from bench.load.sse import EventReader

Serve = Callable[..., AbstractAsyncContextManager[Any]]
Chunked = Callable[..., list[bytes]]


def _event(kind: str, **data: object) -> bytes:
    return b"data: " + json.dumps({"type": kind, "data": data}, separators=(",", ":")).encode() + b"\n\n"


ANSWER = (
    _event("config", tier="eco"),
    _event("token", text="Hel"),
    _event("token", text="lo"),
    _event("metrics", completion_tokens=2),
    _event("done", request_id="r"),
)


async def test_a_batch_measures_every_answer(serve: Serve, chunked: Chunked) -> None:
    async with serve(chunked(*ANSWER), 0.01) as server:
        answers, errors = await run_batch("inference", server.port, streams=4, requests=6, max_tokens=2, power=10)
    assert errors == []
    assert [answer.tokens for answer in answers] == [2] * 6
    for answer in answers:
        assert answer.ttft_s >= 0.02  # head, config, then the first token, 10 ms apart
        assert answer.gaps_s == pytest.approx([0.01], abs=0.2)
    assert total_tokens_per_s(answers) == pytest.approx(
        12 / (max(a.end_s for a in answers) - min(a.start_s for a in answers))
    )


async def test_requests_carry_the_prompt_and_the_given_fields(serve: Serve, chunked: Chunked) -> None:
    async with serve(chunked(*ANSWER)) as server:
        await fetch(request_for("inference", server.port, "Hi", 3, mode="manual", power=10), EventReader("inference"))
        await fetch(request_for("openai", server.port, "Hi", 3, model="eco"), EventReader("openai"))
    ours, openai = (request.split(b"\r\n\r\n", 1) for request in server.requests)
    assert ours[0].startswith(b"POST /api/inference HTTP/1.1\r\n")
    assert json.loads(ours[1]) == {
        **{"prompt": "Hi", "max_tokens": 3, "temperature": 0, "reasoning": False},
        **{"mode": "manual", "power": 10},
    }
    assert openai[0].startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    body = json.loads(openai[1])
    assert body["messages"] == [{"role": "user", "content": "Hi"}]
    assert (body["model"], body["stream"], body["stream_options"]) == ("eco", True, {"include_usage": True})


@pytest.mark.parametrize(
    ("writes", "expected"),
    [
        ([b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy"], "HTTP 503: busy"),
        ([b"nonsense\r\n\r\n"], "unreadable response"),
        ([b"HTTP/1.1 200 OK\r\n\r\ndata: nonsense\n\n"], "unreadable response"),
        ([b"HTTP/1.1 200 OK\r\n\r\n" + ANSWER[1]], "stream ended without a terminal event"),
        ([b"HTTP/1.1 200 OK\r\n\r\n" + _event("error", code="c", message="m")], "c: m"),
        ([b"HTTP/1.1 200 OK\r\n\r\n" + ANSWER[4]], "answer without text"),
        ([b"HTTP/1.1 200 OK\r\n\r\n" + ANSWER[1] + ANSWER[4]], "answer without the server's token count"),
        ([], "HTTP 0"),
    ],
)
async def test_an_incomplete_answer_is_an_error_with_its_reason(
    writes: list[bytes], expected: str, serve: Serve
) -> None:
    async with serve(writes) as server:
        answers, errors = await run_batch("inference", server.port, streams=1, requests=1, max_tokens=2)
    assert answers == []
    assert expected in errors[0]


async def test_an_answer_that_never_ends_times_out(serve: Serve, chunked: Chunked) -> None:
    async with serve(chunked(*ANSWER), 30.0) as server:
        request = Request(port=server.port, path="/", body={}, timeout_s=0.1)
        outcome = await fetch(request, EventReader("inference"))
    assert outcome.error == "no end after 0.1 s"


async def test_a_closed_port_is_an_error() -> None:
    outcome = await fetch(Request(port=free_port(), path="/", body={}), EventReader("inference"))
    assert outcome.error is not None
    assert outcome.error.startswith("cannot connect")


@pytest.mark.parametrize("streams", [0, 5000])
async def test_the_number_of_streams_is_bounded(streams: int) -> None:
    with pytest.raises(ValueError, match="streams must be in 1-1024"):
        await run_batch("inference", 1, streams, 1, 1)


async def test_a_flood_counts_tokens_and_leaves_no_connection_behind(serve: Serve, chunked: Chunked) -> None:
    async with serve(chunked(ANSWER[0], *[ANSWER[1]] * 2, ANSWER[4]), 0.005) as server:
        flood = await run_flood(lambda index: request_for("inference", server.port, f"{index}", 20), 3, 0.05, 0.3)
        async with asyncio.timeout(5):
            await server.idle.wait()
    assert flood.errors == ()
    assert flood.end_s - flood.start_s == pytest.approx(0.3, abs=0.2)
    assert len(flood.arrivals) > 3  # an answer that ends is followed by the next
    counts = [sum(count for _, count in stream) for stream in flood.arrivals]
    assert max(counts) == 2
    assert counts.count(2) >= len(counts) - 3  # all but those that were dropped at the end
    assert flood.client_cpu_s >= 0


async def test_a_flood_stops_at_the_first_error(serve: Serve) -> None:
    async with serve([b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy"]) as server:
        flood = await run_flood(lambda index: request_for("inference", server.port, f"{index}", 20), 2, 0.1, 0.1)
    assert 1 <= len(flood.errors) <= 2
    assert flood.errors[0] == "HTTP 503: busy"
