"""The drain: begun by the pool, which then gets the number of open requests until it is zero."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ray.exceptions import RayError
from starlette.types import Receive, Scope, Send

from serve_app.admission.drain import Drain
from serve_app.admission.open_requests import OpenRequests
from tests.support.http_client import SCOPE, Client


class Method:
    """A method of a deployment handle."""

    def __init__(self, call: Any) -> None:
        self.remote = call


class FakePool:
    """The pool's part of a drain."""

    def __init__(self) -> None:
        self.closing = asyncio.Event()
        self.failures = 0
        self.reports: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self.closed = Method(self._closed)
        self.report_open = Method(self._report_open)

    async def _closed(self) -> bool:
        if self.failures:
            self.failures -= 1
            raise RayError
        await self.closing.wait()
        return True

    async def _report_open(self, replica_id: str, count: int) -> None:
        self.reports.put_nowait((replica_id, count))


async def test_a_drain_begins_when_the_pool_closes_and_reports_the_open_requests() -> None:
    pool, requests = FakePool(), OpenRequests(limit=5)
    drain = Drain(pool, "me", requests)
    drain.work.start()
    await asyncio.sleep(1)
    assert (requests.draining, pool.reports.qsize()) == (False, 0)
    ends = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await ends.wait()

    client = Client()
    scope = {**SCOPE, "method": "POST", "path": "/slow", "headers": []}
    call = asyncio.ensure_future(requests.middleware(app)(scope, client.receive, client.send))
    await asyncio.sleep(1)
    pool.closing.set()
    assert await pool.reports.get() == ("me", 1)
    assert requests.draining
    ends.set()
    await call
    assert await pool.reports.get() == ("me", 0)
    drain.work.stop()


async def test_a_pool_that_is_away_is_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.supervision.FIRST_PAUSE_S", 0.0)
    pool, requests = FakePool(), OpenRequests(limit=5)
    pool.failures = 3
    pool.closing.set()
    drain = Drain(pool, "me", requests)
    drain.work.start()
    assert await pool.reports.get() == ("me", 0)
    drain.work.stop()
