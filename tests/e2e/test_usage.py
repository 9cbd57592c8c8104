"""The request log has what a real engine did, also for clients that left: it adds up to the engine's busy time."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

from bench.load.servers import Server
from serve_app.usage.log_files import log_files
from tests.e2e.test_leaving import CHAT, ECO, ENDLESS, LONG, unfinished
from tests.support.api import Api, events

PREFIX = "usage-test-"
BUSY = re.compile(r'^power_lever_engine_seconds_total\{(?=[^}]*tier="eco")(?=[^}]*state="busy")[^}]*\} (\S+)$', re.M)
SETTLED_AFTER_S = 3.0
"""Replicas tell their metrics each second."""


def busy_s(api: Api) -> float:
    """The busy time of eco's engines when it stands still."""
    api.wait_for(lambda api: unfinished(api) == 0)
    before = -1.0
    while (now := sum(map(float, BUSY.findall(api.get("/metrics").text)))) != before:
        before = now
        time.sleep(SETTLED_AFTER_S)
    return now


def lines(server: Server) -> dict[str, dict[str, Any]]:
    """The lines of this test, by the ends of their requests' ids."""
    found: dict[str, dict[str, Any]] = {}
    for path in log_files([Path(server.env["RAY_TMPDIR"])]):
        for raw in path.read_text(encoding="utf-8").splitlines():
            if PREFIX in raw and (line := json.loads(raw))["request_id"].startswith(PREFIX):
                found[line["request_id"].removeprefix(PREFIX)] = line
    return found


def headers(name: str) -> dict[str, str]:
    return {"x-request-id": PREFIX + name}


def test_the_lines_add_up_to_the_busy_time_of_the_engine_whoever_left(api: Api, server: Server) -> None:
    api.infer(prompt="Hello.", max_tokens=2, **ECO)  # its replica is there, and was idle before
    began_s = busy_s(api)
    whole = api.post_as("/api/inference", {"prompt": "Say hello.", "max_tokens": 40, **ECO}, headers("whole"))
    assert whole.status_code == 200
    body = {"prompt": ENDLESS, "max_tokens": 1500, **ECO}
    with api.stream("/api/inference", body, headers=headers("left")) as response:
        stream = events(response.iter_bytes())
        for _ in range(60):
            next(stream)
    with api.stream("/v1/chat/completions", CHAT | {"stream": True}, headers=headers("v1")) as response:
        pieces = response.iter_bytes()
        for _ in range(40):
            next(pieces)
    with api.stream(
        "/api/inference", body | {"prompt": LONG, "max_tokens": 400}, headers=headers("prefill")
    ) as response:
        stream = events(response.iter_bytes())  # kept: collecting it would close the connection
        next(stream)
        time.sleep(1.0)
    took_s = busy_s(api) - began_s
    read = lines(server)
    assert {name: (line["outcome"], line["counted"]) for name, line in read.items()} == {
        "whole": ("ok", "whole"),
        "left": ("client_left", "estimated"),
        "v1": ("client_left", "estimated"),
        "prefill": ("client_left", "estimated"),
    }
    billed_s = sum(line["busy_s"] for line in read.values())
    # Steps that had begun when a client left are computed in vain, and a prompt that is being read is not given up at
    # once. Nothing is billed of what the engine did not do, but for the way of a request's last word to the ingress.
    assert 0.7 * took_s <= billed_s <= 1.3 * took_s, (took_s, {name: line["busy_s"] for name, line in read.items()})
    for name in ("left", "v1"):
        assert read[name]["completion_tokens"] >= 20
        assert read[name]["busy_s"] > 0.1 * read[name]["total_ms"] / 1000
