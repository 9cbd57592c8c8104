"""What tests of an application's end share: streams in threads, refusals, and the processes that must be gone."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from psutil import Process

from bench.load.processes import command_of, is_alive
from bench.load.servers import Server
from tests.support.api import PATIENCE_S, Answer, Api, events


class Stream:
    """One request to `/api/inference` in a thread, with its events so far."""

    def __init__(self, url: str, threads: ThreadPoolExecutor, **body: Any) -> None:
        self.answer = Answer()
        self._done: Future[None] = threads.submit(self._read, url, {"mode": "manual", **body})

    def _read(self, url: str, body: dict[str, Any]) -> None:
        with Api(url) as api, api.stream("/api/inference", body) as response:
            assert response.status_code == 200, response.read()
            for event in events(response.iter_bytes()):
                self.answer.events.append(event)

    def wait_for(self, kind: str) -> None:
        """Wait until an event of this kind has come."""
        deadline_s = time.monotonic() + PATIENCE_S
        while kind not in self.answer.kinds:
            assert not self._done.done(), f"ended with {self.answer.kinds}: {self._done.exception()}"
            assert time.monotonic() < deadline_s, f"no {kind} in {self.answer.kinds}"
            time.sleep(0.02)

    @property
    def open(self) -> bool:
        return not self._done.done()

    def error(self) -> BaseException | None:
        """Wait for its end: what cut it, or None."""
        return self._done.exception(timeout=PATIENCE_S)


def wait_until_refused(url: str) -> httpx.Response:
    """Wait until the application refuses a new request: the refusal."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (response := httpx.get(f"{url}/v1/models", timeout=PATIENCE_S)).status_code == 200:
        assert time.monotonic() < deadline_s, "new requests are still taken"
        time.sleep(0.05)
    return response


def exit_code(server: Server, within_s: float) -> int:
    """Wait for the end of the server's first process: its exit code."""
    assert server._process is not None
    try:
        return server._process.wait(within_s)
    except subprocess.TimeoutExpired:
        pytest.fail(f"it still runs after {within_s:g} s:\n{server.log_tail()}")


def still_running(tree: Sequence[Process]) -> list[str]:
    """Return the commands of those processes that have not ended."""
    return [command_of(process) for process in tree if is_alive(process)]
