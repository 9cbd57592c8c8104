"""A client that leaves a real engine, at any moment, frees it at once.

Two witnesses: the engine's own count in `/api/tiers`, which is up to 2 s old (a report a second, two refreshes of half
a second); and the CPU time of the engine's processes, which stands still once the engine core has dropped the request.
"""

from __future__ import annotations

import time
from typing import Final

import pytest

from bench.load.processes import cpu_seconds
from bench.load.servers import Server, replica_trees
from tests.support.api import Api, Json, events
from tests.support.raw_http import connected, request

SHOWN_AFTER_S: Final = 1.0 + 2.0
"""A second to free the engine, on a quiet machine, and until the view is newer than the request."""
FREED_WITHIN_S: Final = 10.0
"""On a busy machine. The whole answer would take longer on any."""
ECO: Json = {"mode": "manual", "power": 10, "temperature": 0}
ENDLESS = "Write a very long story about a lighthouse keeper, in twenty chapters."
LONG = "The lighthouse keeper wrote of storms and ships. " * 150
"""About 1,500 tokens: their prefill takes seconds here, so that there is a moment before the first token."""
BUSY_S: Final = 0.5
"""CPU time of a working engine."""
CHAT: Json = {"model": "eco", "messages": [{"role": "user", "content": ENDLESS}], "temperature": 0, "ignore_eos": True}


def unfinished(api: Api) -> int:
    requests = api.tier("eco")["requests"]
    return int(requests["running"]) + int(requests["waiting"])


def assert_freed(api: Api) -> None:
    """Of a request that the view has shown."""
    api.wait_for(lambda api: unfinished(api) == 0, SHOWN_AFTER_S + FREED_WITHIN_S)


@pytest.fixture(autouse=True)
def _idle_before(api: Api) -> None:
    api.wait_for(lambda api: unfinished(api) == 0)


def test_leaving_in_the_middle_of_a_stream(api: Api) -> None:
    with api.stream("/api/inference", {"prompt": ENDLESS, "max_tokens": 1500, **ECO}) as response:
        stream = events(response.iter_bytes())  # kept: collecting it would close the connection
        while next(stream)[0] != "token":
            pass
        api.wait_for(lambda api: unfinished(api) == 1)
    assert_freed(api)


def test_leaving_before_the_first_token(api: Api) -> None:
    with api.stream("/api/inference", {"prompt": LONG, "max_tokens": 400, **ECO}) as response:
        kind, _ = next(events(response.iter_bytes()))
        assert kind == "config"
    # Until the view is newer than the request: one that is older says 0 too.
    time.sleep(SHOWN_AFTER_S)
    assert_freed(api)


def test_leaving_an_openai_stream(api: Api) -> None:
    with api.stream("/v1/chat/completions", {**CHAT, "max_tokens": 1500, "stream": True}) as response:
        assert response.status_code == 200
        api.wait_for(lambda api: unfinished(api) == 1)
    assert_freed(api)


def test_leaving_while_a_whole_openai_answer_is_made(server: Server, api: Api) -> None:
    with connected(server) as connection:
        connection.sendall(request({**CHAT, "max_tokens": 1500}, path="/v1/chat/completions"))
        api.wait_for(lambda api: unfinished(api) == 1)
    assert_freed(api)


def test_the_engine_processes_stop_working_when_the_client_has_left(server: Server, api: Api) -> None:
    def engine_cpu_s() -> float:
        [_, *engine] = replica_trees(server.processes(), ("power-lever:eco",))["power-lever:eco"]
        return cpu_seconds(engine)

    with api.stream("/v1/chat/completions", {**CHAT, "max_tokens": 1500, "stream": True}) as response:
        pieces = response.iter_bytes()  # kept: collecting it would close the connection
        next(pieces)
        before_s, began_s = engine_cpu_s(), time.monotonic()
        api.wait_for(lambda _: engine_cpu_s() > before_s + BUSY_S)
        took_s = time.monotonic() - began_s
    assert_freed(api)
    before_s = engine_cpu_s()
    time.sleep(took_s)

    assert engine_cpu_s() - before_s < BUSY_S / 4
