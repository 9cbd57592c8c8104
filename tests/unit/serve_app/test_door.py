"""The ingress's door: open, closed, and counted."""

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

import serve_app.door
from serve_app.door import Door
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


def client_of(door: Door, release: asyncio.Event) -> httpx.AsyncClient:
    async def slow(request: Request) -> Response:
        await release.wait()
        return PlainTextResponse("whole")

    async def health(request: Request) -> Response:
        return PlainTextResponse("ok")

    routes = [Route("/slow", slow, methods=["POST"]), Route("/healthz", health), Route("/readyz", health)]
    app = Starlette(routes=routes, middleware=[Middleware(door.guard)])
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://door")


async def closed_door(pool: FakePool) -> tuple[Door, asyncio.Task[None]]:
    door = Door(pool, "me", 5)
    running = asyncio.ensure_future(door.run())
    pool.closing.set()
    await asyncio.wait_for(pool.heard.wait(), 5)
    return door, running


async def test_an_open_door_lets_everything_through() -> None:
    door, release = Door(FakePool(), "me", 5), asyncio.Event()
    release.set()
    async with client_of(door, release) as client:
        assert (await client.post("/slow")).text == "whole"


async def test_what_is_inside_when_the_door_closes_is_finished_and_counted_until_then() -> None:
    pool, release = FakePool(), asyncio.Event()
    door = Door(pool, "me", 5)
    running = asyncio.ensure_future(door.run())
    async with client_of(door, release) as client:
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
    running.cancel()


async def test_a_closed_door_refuses_what_is_new_in_json_and_says_when_to_come_again() -> None:
    pool = FakePool()
    door, running = await closed_door(pool)
    async with client_of(door, asyncio.Event()) as client:
        for path in ("/slow", "/readyz", "/no-such-path"):
            refused = await client.post(path)
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "5"
            error = json.loads(refused.content)["error"]
            assert (error["code"], error["retryable"]) == ("stopping", True)
        assert pool.told[-1] == ("me", 0)
    running.cancel()


async def test_the_process_is_healthy_until_its_end_also_below_a_prefix() -> None:
    door, running = await closed_door(FakePool())
    async with client_of(door, asyncio.Event()) as client:
        assert (await client.get("/healthz")).status_code == 200
    below = Starlette(routes=[Mount("/prefix", Starlette(routes=[], middleware=[Middleware(door.guard)]))])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(below), base_url="http://door") as client:
        assert (await client.get("/prefix/healthz")).status_code == 404  # passed on, and there is no such route
        assert (await client.get("/prefix/readyz")).status_code == 503
    running.cancel()


async def test_a_pool_that_fails_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_app.door, "_RETRY_AFTER_S", 0.0)
    pool = FakePool()
    pool.failures = 3
    _, running = await closed_door(pool)
    assert pool.told[-1] == ("me", 0)
    running.cancel()


async def test_what_is_no_request_passes() -> None:
    door, running = await closed_door(FakePool())
    seen = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    client = Client()
    await door.guard(app)({"type": "lifespan"}, client.receive, client.send)
    assert seen == ["lifespan"]
    running.cancel()
