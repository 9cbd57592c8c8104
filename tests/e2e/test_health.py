"""An engine that dies: its streams go on with another one, and its tier comes back."""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

import pytest

from bench.load.client import HOST
from bench.load.processes import command_of
from bench.load.servers import Server, replica_trees
from tests.support.api import PATIENCE_S, Answer, Api, events
from tests.support.many_streams import Streams

ENDS_WITHIN_S = 10.0
"""Well before Serve's own third health check in a row (every 5 s) would find an engine dead."""
QUESTION = {
    "prompt": "What is the capital of France?",
    "mode": "manual",
    "power": 70,
    "max_tokens": 24,
    "temperature": 0,
}


def replica(server: Server, tier: str) -> tuple[int, int]:
    """Process ids of the tier's replica and of its engine core."""
    name = f"power-lever:{tier}"
    tree = replica_trees(server.processes(), (name,))[name]
    [core] = [process for process in tree if "EngineCore" in command_of(process)]
    [top] = [process for process in tree if command_of(process).startswith("ray::")]
    return top.pid, core.pid


def assert_ends(server: Server, api: Api, pid: int) -> None:
    """The replica of that process ends at once."""
    api.wait_for(lambda _: all(process.pid != pid for process in server.processes()), ENDS_WITHIN_S)


class Death(NamedTuple):
    """The replica of the performance tier, whose engine was killed while it had nothing to do."""

    pid: int
    next: Streams
    """The next request, under way: another replica starts for it while the tests of another tier go on."""


@pytest.fixture(scope="module")
def idle_death(server: Server) -> Death:
    with Api(f"http://{HOST}:{server.port}") as api:
        assert api.infer(**QUESTION).kinds[-1] == "done"  # the tier is warm
        pid, core = replica(server, "performance")
        os.kill(core, signal.SIGKILL)
        assert_ends(server, api, pid)
        streams = Streams(api.base_url)
    streams.start([QUESTION])
    return Death(pid, streams)


def test_a_stream_outlives_its_engine_with_the_same_greedy_text(server: Server, api: Api, idle_death: Death) -> None:
    body = {"prompt": "Write a very long story about a café.", "mode": "manual", "power": 95, "max_tokens": 120}
    body |= {"temperature": 0, "stop": ["\n\n\n\n"]}
    undisturbed = api.infer(**body)
    answer, dying = Answer(), 0
    with api.stream("/api/inference", body) as response:
        for kind, data in events(response.iter_bytes()):
            answer.events.append((kind, data))
            if kind == "token" and not dying and len(answer.all("token")) > 20:
                dying, core = replica(server, "ultra")
                os.kill(core, signal.SIGKILL)

    assert answer.kinds[-1] == "done"
    assert [status["state"] for status in answer.all("status")].count("resumed") == 1
    assert [token["token_id"] for token in answer.all("token")] == [
        token["token_id"] for token in undisturbed.all("token")
    ]
    assert answer.text == undisturbed.text
    metrics, whole = answer.one("metrics"), undisturbed.one("metrics")
    for field in ("prompt_tokens", "completion_tokens", "finish_reason"):
        assert metrics[field] == whole[field]
    assert [leg["ended_by"] for leg in metrics["legs"]] == ["engine_dead", "done"]
    assert sum(leg["completion_tokens"] for leg in metrics["legs"]) == metrics["completion_tokens"]
    assert_ends(server, api, dying)


def test_an_idle_engines_death_ends_its_replica_and_another_answers_the_next_request(
    server: Server, idle_death: Death
) -> None:
    [again] = idle_death.next.answers(PATIENCE_S)
    assert again.kinds[-1] == "done"
    assert "Paris" in again.text
    assert replica(server, "performance")[0] != idle_death.pid
