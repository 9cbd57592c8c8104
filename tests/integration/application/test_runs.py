"""Past runs are shared by the ingress replicas, survive them, and shape plans.

After the files that want tiers cold or idle: it replaces the ingress replicas of an application.
"""

from __future__ import annotations

import os
import signal

from bench.load.processes import command_of
from bench.load.servers import Server
from tests.support.api import Api, Json

POEM = {"prompt": "Write a poem about a stone. stub:tokens=20", "mode": "manual", "power": 10}
"""No other test asks this application for creative writing."""
REQUESTS = 20
"""So many answers in a row come from both ingress replicas, but for one time in 500,000."""


def poems(api: Api) -> Json:
    """The eco tier's recent runs of prompts like the one above."""
    categories: Json = api.tier("eco")["recent"]["categories"]
    found: Json = categories.get("creative", {"runs": 0.0})
    return found


def shown_by_all(api: Api, at_least: float) -> bool:
    return all(poems(api)["runs"] >= at_least for _ in range(REQUESTS))


def ingress_processes(server: Server) -> set[int]:
    """Of the application with two of them."""
    return {
        p.pid for p in server.processes() if command_of(p).startswith("ray::ServeReplica:power-lever-tight:ingress")
    }


def test_finished_runs_are_shown_by_every_ingress_replica(tight: Api) -> None:
    before = poems(tight)["runs"]
    answers = [tight.infer(**POEM) for _ in range(3)]

    tight.wait_for(lambda api: shown_by_all(api, before + 2.5))
    runs = poems(tight)
    assert runs["completion_tokens"]["mean"] == 20
    assert runs["finish_reasons"] == {"stop": 1.0}
    slowest = max(answer.one("metrics")["ttft_ms"] for answer in answers)
    assert 0 < runs["ttft_ms"]["mean"] <= slowest
    assert tight.tier("eco")["recent"]["runs"] >= runs["runs"]


def test_limits_are_checked_against_past_runs(tight: Api) -> None:
    answer = tight.infer(prompt="What is 12 * 7 + 3? stub:tokens=5", constraints={"max_ttft_ms": 3000})
    [constraints] = [step["result"] for step in answer.all("trace") if step["step"] == "constraints"]
    assert (answer.one("config")["tier"], constraints["kept"]) == ("eco", True)
    assert constraints["past_runs"] > 0
    assert constraints["reason"].startswith("the eco tier is predicted to keep your limit")


def test_runs_survive_the_ingress_replicas_that_reported_them(tight: Api, server: Server) -> None:
    tight.infer(**POEM)
    tight.wait_for(lambda api: shown_by_all(api, 0.9))
    before, old = poems(tight)["runs"], ingress_processes(server)
    assert len(old) == 2
    for pid in old:
        os.kill(pid, signal.SIGKILL)

    def replaced(api: Api) -> bool:
        new = ingress_processes(server) - old
        return len(new) == 2 and api.get("/api/tiers").status_code == 200

    tight.wait_for(replaced)
    tight.wait_for(lambda api: shown_by_all(api, 0.9 * before))
