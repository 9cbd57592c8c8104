"""An engine that dies: its streams end with an error, and its tier comes back."""

from __future__ import annotations

import os
import signal

from bench.servers import Server, replica_trees
from tests.support.api import Api, events

ULTRA = "power-lever:ultra"
RECOVERY_S = 240.0


def engine_core(server: Server) -> int:
    """Process id of the engine core of the server's ultra replica."""
    tree = replica_trees(server.processes(), (ULTRA,))[ULTRA]
    [core] = [process for process in tree if "EngineCore" in process.command()]
    return core.pid


def test_a_dead_engine_ends_its_stream_retryably_and_its_tier_serves_again(server: Server, api: Api) -> None:
    body = {"prompt": "Write a very long story.", "mode": "manual", "power": 95, "max_tokens": 1500, "temperature": 0}
    kinds: list[str] = []
    error = {}
    killed = 0
    with api.stream("/api/inference", body) as response:
        for kind, data in events(response.iter_bytes()):
            kinds.append(kind)
            if kind == "token" and not killed:
                killed = engine_core(server)
                os.kill(killed, signal.SIGKILL)
            if kind == "error":
                error = data

    assert kinds[-1] == "error"
    assert not {"metrics", "done"} & set(kinds)
    assert error["retryable"] is True
    assert error["code"] in ("engine_dead", "replica_lost")

    # The replica ends with its engine: no second request is sent to it.
    again = api.infer(prompt="What is the capital of France?", mode="manual", power=95, max_tokens=24, temperature=0)
    assert again.kinds[-1] == "done"
    assert "Paris" in again.text
    assert engine_core(server) != killed


def test_an_idle_engines_death_ends_its_replica_too(server: Server, api: Api) -> None:
    killed = engine_core(server)
    os.kill(killed, signal.SIGKILL)
    # Well before Serve's own third health check in a row (every 5 s) would have found it dead.
    api.wait_for(lambda _: replica_trees(server.processes(), (ULTRA,)).get(ULTRA) is None, timeout_s=10)
    answer = api.infer(prompt="What is the capital of France?", mode="manual", power=95, max_tokens=24, temperature=0)
    assert answer.kinds[-1] == "done"
