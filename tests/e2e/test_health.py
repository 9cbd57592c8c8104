"""An engine that dies: its streams end with an error, and its tier comes back."""

from __future__ import annotations

import os
import signal

from bench.load.processes import command_of
from bench.load.servers import Server, replica_trees
from tests.support.api import Api, events

ULTRA = "power-lever:ultra"


ENDS_WITHIN_S = 10.0
"""Well before Serve's own third health check in a row (every 5 s) would find an engine dead."""
QUESTION = {
    "prompt": "What is the capital of France?",
    "mode": "manual",
    "power": 95,
    "max_tokens": 24,
    "temperature": 0,
}


def replica(server: Server) -> tuple[int, int]:
    """Process ids of the server's ultra replica and of its engine core."""
    tree = replica_trees(server.processes(), (ULTRA,))[ULTRA]
    [core] = [process for process in tree if "EngineCore" in command_of(process)]
    [top] = [process for process in tree if command_of(process).startswith("ray::")]
    return top.pid, core.pid


def assert_ends(server: Server, api: Api, pid: int) -> None:
    """The replica of that process ends at once."""
    api.wait_for(lambda _: all(process.pid != pid for process in server.processes()), ENDS_WITHIN_S)


def test_an_idle_engines_death_ends_its_replica_and_another_answers_the_next_request(server: Server, api: Api) -> None:
    assert api.infer(**QUESTION).kinds[-1] == "done"  # the tier is warm
    dying, core = replica(server)
    os.kill(core, signal.SIGKILL)
    assert_ends(server, api, dying)
    again = api.infer(**QUESTION)
    assert again.kinds[-1] == "done"
    assert "Paris" in again.text
    assert replica(server)[0] != dying


def test_a_dead_engine_ends_its_stream_with_a_retryable_error_and_its_replica(server: Server, api: Api) -> None:
    body = {"prompt": "Write a very long story.", "mode": "manual", "power": 95, "max_tokens": 1500, "temperature": 0}
    kinds: list[str] = []
    error = {}
    dying = 0
    with api.stream("/api/inference", body) as response:
        for kind, data in events(response.iter_bytes()):
            kinds.append(kind)
            if kind == "token" and not dying:
                dying, core = replica(server)
                os.kill(core, signal.SIGKILL)
            if kind == "error":
                error = data

    assert kinds[-1] == "error"
    assert not {"metrics", "done"} & set(kinds)
    assert error["retryable"] is True
    assert error["code"] in ("engine_dead", "replica_lost")
    assert_ends(server, api, dying)
