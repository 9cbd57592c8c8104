"""The pool dies: requests go on, Serve starts it again, and every ingress replica's view is fresh within seconds."""

from __future__ import annotations

import os
import signal

from bench.load.processes import command_of
from bench.load.servers import Server
from tests.support.api import Api

ASKED = {"prompt": "What is the capital of France? stub:tokens=5", "mode": "manual", "power": 10}
REQUESTS = 20
"""So many answers in a row come from both ingress replicas, but for one time in 500,000."""


def pool_processes(server: Server) -> set[int]:
    """Of the application with two ingress replicas."""
    return {p.pid for p in server.processes() if command_of(p).startswith("ray::ServeReplica:power-lever-tight:pool")}


def runs_seen(api: Api) -> set[float]:
    """How many past runs of the eco tier the ingress replicas know of."""
    return {api.tier("eco")["recent"]["runs"] for _ in range(REQUESTS)}


def test_a_killed_pool_comes_back_without_its_past_runs(tight: Api, server: Server) -> None:
    for _ in range(3):
        assert tight.infer(**ASKED).kinds[-1] == "done"
    tight.wait_for(lambda api: min(runs_seen(api)) > 2.5)
    [pool] = pool_processes(server)

    os.kill(pool, signal.SIGKILL)
    # For an answer nobody needs it. That this one ran is reported when it is back.
    assert tight.infer(**ASKED).kinds[-1] == "done"
    assert tight.get("/healthz").status_code == 200
    tight.wait_for(lambda _: len(pool_processes(server) - {pool}) == 1)

    tight.wait_for(lambda api: all(0.9 < runs < 1.5 for runs in runs_seen(api)))
    tight.wait_for(lambda api: all(api.tier("eco")["replicas"]["running"] == 1 for _ in range(REQUESTS)))
    # A long poll of the dead pool is given up after 10 s, and one of the new pool takes 5 s to succeed.
    tight.wait_for(lambda api: all(api.get("/healthz").json() == {"status": "ok"} for _ in range(REQUESTS)))
