"""The ingress's gate: open, closed, and counted."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from ray.exceptions import RayError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from serve_app.admission.drain import DrainGate
from tests.support.http_client import Client


class Method:
    """A method of a deployment handle."""

    def __init__(self, call: Any) -> None:
        self.remote = call


class FakePool:
    """The pool's part of the stop."""

    def __init__(self) -> None:
        self.closing = asyncio.Event()
        self.failures = 0
        self.told: list[tuple[str, int]] = []
        self.heard = asyncio.Event()
        self.closed = Method(self._closed)
        self.report_open = Method(self._report_open)

    async def _closed(self) -> bool:
        if self.failures:
            self.failures -= 1
            raise RayError
        await self.closing.wait()
        return True

    async def _report_open(self, replica_id: str, count: int) -> None:
        self.told.append((replica_id, count))
        self.heard.set()


def client_of(gate: DrainGate, release: asyncio.Event) -> httpx.AsyncClient:
    async def slow(request: Request) -> Response:
        await release.wait()
        return PlainTextResponse("whole")

    async def health(request: Request) -> Response:
        return PlainTextResponse("ok")

    routes = [Route("/slow", slow, methods=["POST"]), Route("/healthz", health), Route("/readyz", health)]
    app = Starlette(routes=routes, middleware=[Middleware(gate.guard)])
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gate")


async def closed_gate(pool: FakePool) -> DrainGate:
    gate = DrainGate(pool, "me", 5)
    gate.work.start()
    pool.closing.set()
    await asyncio.wait_for(pool.heard.wait(), 5)
    return gate


async def test_an_open_gate_lets_everything_through() -> None:
    gate, release = DrainGate(FakePool(), "me", 5), asyncio.Event()
    release.set()
    async with client_of(gate, release) as client:
        assert (await client.post("/slow")).text == "whole"


async def test_what_is_inside_when_the_gate_closes_is_finished_and_counted_until_then() -> None:
    pool, release = FakePool(), asyncio.Event()
    gate = DrainGate(pool, "me", 5)
    gate.work.start()
    async with client_of(gate, release) as client:
        inside = asyncio.ensure_future(client.post("/slow"))
        await asyncio.sleep(0.01)
        pool.closing.set()
        await asyncio.wait_for(pool.heard.wait(), 5)
        assert pool.told[-1] == ("me", 1)
        release.set()
        assert (await inside).text == "whole"
        pool.heard.clear()
        await asyncio.wait_for(pool.heard.wait(), 5)
        assert pool.told[-1] == ("me", 0)
    gate.work.stop()


async def test_a_closed_gate_refuses_what_is_new_in_json_and_says_when_to_come_again() -> None:
    pool = FakePool()
    gate = await closed_gate(pool)
    async with client_of(gate, asyncio.Event()) as client:
        for path in ("/slow", "/readyz", "/no-such-path"):
            refused = await client.post(path)
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "5"
            error = json.loads(refused.content)["error"]
            assert (error["code"], error["retryable"]) == ("stopping", True)
        assert pool.told[-1] == ("me", 0)
    gate.work.stop()


async def test_the_process_is_healthy_until_its_end_also_below_a_prefix() -> None:
    gate = await closed_gate(FakePool())
    async with client_of(gate, asyncio.Event()) as client:
        assert (await client.get("/healthz")).status_code == 200
    below = Starlette(routes=[Mount("/prefix", Starlette(routes=[], middleware=[Middleware(gate.guard)]))])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(below), base_url="http://gate") as client:
        assert (await client.get("/prefix/healthz")).status_code == 404  # passed on, and there is no such route
        assert (await client.get("/prefix/readyz")).status_code == 503
    gate.work.stop()


async def test_a_pool_that_is_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.supervised.FIRST_PAUSE_S", 0.0)
    pool = FakePool()
    pool.failures = 3
    gate = await closed_gate(pool)
    assert pool.told[-1] == ("me", 0)
    gate.work.stop()


async def test_what_is_no_request_passes() -> None:
    gate = await closed_gate(FakePool())
    seen = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    client = Client()
    await gate.guard(app)({"type": "lifespan"}, client.receive, client.send)
    assert seen == ["lifespan"]
    gate.work.stop()
