"""A drain ends when no ingress replica holds a request, whatever happens to the pool meanwhile."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from serve_app.lifecycle import stop


class Method:
    """A deployment's method, called through a handle."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    async def remote(self) -> Any:
        return self._function()


class Pool:
    """A pool of one ingress replica, which reports these counts one after the other once the drain has begun."""

    def __init__(self, *counts: int | Exception) -> None:
        self._counts = list(counts)
        self.draining = False
        self.close, self.open_requests = Method(self._close), Method(self._open_requests)

    def _close(self) -> None:
        self.draining = True

    def _open_requests(self) -> dict[str, int]:
        if not self.draining:
            return {}
        count = self._counts.pop(0) if len(self._counts) > 1 else self._counts[0]
        if isinstance(count, Exception):
            self.draining = False  # the process that comes next knows nothing
            raise count
        return {"ingress": count}


@pytest.fixture
def drain(monkeypatch: pytest.MonkeyPatch) -> Callable[[Pool, float], Awaitable[tuple[bool, list[str]]]]:
    """Wait for a pool's drain for so many seconds: whether it ended, and what the terminal said."""
    ingress = SimpleNamespace(replica_states={"RUNNING": 1})
    status = SimpleNamespace(applications={"lever": SimpleNamespace(deployments={"ingress": ingress})})
    monkeypatch.setattr("ray.serve.status", lambda: status)
    monkeypatch.setattr(stop, "_POLL_S", 0.001)

    async def wait(pool: Pool, within_s: float) -> tuple[bool, list[str]]:
        lines: list[str] = []
        handles: Any = {"lever": pool}
        return await stop._wait_until_drained(handles, time.monotonic() + within_s, lines.append), lines

    return wait


async def test_the_terminal_says_how_many_requests_are_open_whenever_that_changes(drain: Any) -> None:
    ended, lines = await drain(Pool(2, 2, 1, 0), 60)
    assert ended
    assert [line.split(",")[0] for line in lines] == ["stopping: open requests: 2", "stopping: open requests: 1"]


async def test_a_pool_that_has_not_begun_the_drain_begins_it(drain: Any) -> None:
    assert await drain(Pool(0), 60) == (True, [])


async def test_a_pool_that_dies_and_is_replaced_meanwhile_drains_too(drain: Any) -> None:
    ended, lines = await drain(Pool(1, ActorDiedError(), ActorDiedError(), 0), 60)
    assert (ended, len(lines)) == (True, 1)


async def test_requests_that_are_open_or_unknown_at_the_end_of_the_time_are_cut_and_that_is_said(drain: Any) -> None:
    ended, lines = await drain(Pool(3), 0.05)
    assert not ended
    assert lines[-1] == "stopping: the time is up; open requests that are cut: 3"
    ended, lines = await drain(Pool(ActorDiedError()), 1.0)
    assert not ended
    assert lines[0].startswith("stopping: open requests: unknown, for up to ")
    assert lines[-1] == "stopping: the time is up; open requests that are cut: unknown"
