"""Ctrl-C and SIGTERM: what is open is finished, what is new is refused, and nothing is left; a second signal ends all.

Each test has an instance of its own, as it ends it. Limits on times leave room for a busy machine: on 2 cores that
others used too, an instance was gone 5.3 s after its last stream.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from bench.load.client import HOST
from bench.load.processes import Process, process_tree, read_process
from bench.load.servers import Server, application, running
from tests.support.api import Answer, Api, events

CONFIG = {
    "profile": "local",
    "inference_mode": "mock",
    "stub": {"tokens_per_s": 20.0},
    "tiers": {"eco": {"max_ongoing_requests": 1}},
}


@pytest.fixture
def instance() -> Iterator[Server]:
    """An instance whose eco tier takes one request at a time; its other tiers are cold."""
    server = application({"/": CONFIG})
    with running(server, timeout_s=240):
        yield server


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as threads:
        yield threads


class Stream:
    """One request to `/api/inference` in a thread, with its events."""

    def __init__(self, server: Server, threads: ThreadPoolExecutor, power: int, tokens: int) -> None:
        self.answer = Answer()
        body = {"prompt": f"stub:tokens={tokens}", "mode": "manual", "power": power, "max_tokens": tokens}
        self._done: Future[None] = threads.submit(self._read, f"http://{HOST}:{server.port}", body)

    def _read(self, url: str, body: dict[str, object]) -> None:
        with Api(url) as api, api.stream("/api/inference", body) as response:
            assert response.status_code == 200, response.read()
            for event in events(response.iter_bytes()):
                self.answer.events.append(event)

    def wait_for(self, kind: str) -> None:
        """Until an event of this kind has come."""
        deadline_s = time.monotonic() + 60
        while kind not in self.answer.kinds:
            assert not self._done.done(), f"ended with {self.answer.kinds}: {self._done.exception()}"
            assert time.monotonic() < deadline_s, f"no {kind} in {self.answer.kinds}"
            time.sleep(0.02)

    @property
    def open(self) -> bool:
        return not self._done.done()

    def error(self) -> BaseException | None:
        """What ended it, if it was cut."""
        return self._done.exception(timeout=60)


def refused(server: Server) -> httpx.Response | None:
    """The refusal of a new request; None while it is taken."""
    response = httpx.get(f"http://{HOST}:{server.port}/v1/models", timeout=30)
    return response if response.status_code != 200 else None


def wait_until_refused(server: Server) -> httpx.Response:
    deadline_s = time.monotonic() + 15
    while (response := refused(server)) is None:
        assert time.monotonic() < deadline_s, "new requests are still taken"
        time.sleep(0.05)
    return response


def exit_code(server: Server, within_s: float) -> int:
    assert server._process is not None
    return server._process.wait(within_s)


def left_of(tree: list[Process]) -> list[str]:
    now = [(read_process(process.pid), process) for process in tree]
    return [then.command() for new, then in now if new and new.start_ticks == then.start_ticks and new.state != "Z"]


def test_sigterm_finishes_what_is_open_refuses_what_is_new_and_leaves_nothing(
    instance: Server, threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    check_second_instance(instance, tmp_path)
    working = Stream(instance, threads, power=10, tokens=240)
    working.wait_for("token")
    waiting = Stream(instance, threads, power=10, tokens=20)  # for the one place of the eco tier
    cold = Stream(instance, threads, power=90, tokens=20)  # for the first replica of the ultra tier
    waiting.wait_for("reasoning")
    cold.wait_for("reasoning")
    tree = process_tree(instance.pid)

    os.kill(instance.pid, signal.SIGTERM)  # as `docker stop`: the first process alone gets it

    response = wait_until_refused(instance)
    assert working.open
    assert response.status_code == 503
    assert response.headers["retry-after"] == "5"
    assert response.json()["error"]["code"] == "stopping"
    with Api(f"http://{HOST}:{instance.port}") as api:
        assert api.get("/readyz").status_code == 503  # a balancer goes elsewhere
        assert api.get("/healthz").status_code == 200  # and nobody kills what still works
    for stream, tokens in ((working, 240), (waiting, 20), (cold, 20)):
        assert stream.error() is None
        assert stream.answer.kinds[-1] == "done"
        assert len(stream.answer.all("token")) == tokens
    assert exit_code(instance, within_s=30) == 0
    assert left_of(tree) == []


def test_ctrl_c_drains_and_a_second_one_ends_everything_at_once(instance: Server, threads: ThreadPoolExecutor) -> None:
    long = Stream(instance, threads, power=90, tokens=2000)
    long.wait_for("token")
    short = Stream(instance, threads, power=10, tokens=60)
    short.wait_for("token")
    tree = process_tree(instance.pid)

    os.killpg(instance.pid, signal.SIGINT)  # as a terminal does: every process of the group gets it

    wait_until_refused(instance)
    assert short.error() is None
    assert short.answer.kinds[-1] == "done"
    assert long.open, long.answer.events[-1]
    began_s = time.monotonic()
    os.killpg(instance.pid, signal.SIGINT)
    assert exit_code(instance, within_s=10) == 128 + signal.SIGINT
    assert time.monotonic() - began_s < 3
    assert long.error() is not None
    assert left_of(tree) == []


def check_second_instance(first: Server, folder: Path) -> None:
    """One on the same port says so in words, and ends."""
    config = folder / "serve_config.yaml"
    applications = [{"name": "second", "import_path": "serve_app.app:build", "args": CONFIG}]
    http_options = {"host": HOST, "port": first.port}
    config.write_text(json.dumps({"http_options": http_options, "applications": applications}))
    command = [sys.executable, "-m", "serve_app", "serve", "--address", "local", str(config)]
    second = subprocess.run(command, env=os.environ | first.env, capture_output=True, text=True, timeout=120)
    assert second.returncode == 1
    assert f"error: http_options: port {first.port} of {HOST} is in use" in second.stderr
    assert "Traceback" not in second.stderr
