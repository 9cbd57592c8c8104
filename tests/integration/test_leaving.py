"""A client that leaves, at any moment, frees the engine within a second.

The engine's count reaches `/api/tiers` by way of a report a second and two refreshes of half a second, so the tests
allow those 2 s on top.
"""

from __future__ import annotations

import httpx
import pytest

from tests.support.api import Api, Json, events

FREED_WITHIN_S = 1.0 + 2.0
ECO = {"mode": "manual", "power": 10}
CHAT: Json = {"model": "eco", "max_tokens": 2000}


def running(api: Api) -> int:
    count: int = api.tier("eco")["requests"]["running"]
    return count


@pytest.fixture(autouse=True)
def _idle_before(api: Api) -> None:
    api.wait_for(lambda api: running(api) == 0, timeout_s=10)


def test_leaving_in_the_middle_of_a_stream(api: Api) -> None:
    with api.stream("/api/inference", {"prompt": "x stub:rate=5", "max_tokens": 2000, **ECO}) as response:
        stream = events(response.iter_bytes())  # kept: collecting it would close the connection
        while next(stream)[0] != "token":
            pass
        api.wait_for(lambda api: running(api) == 1, timeout_s=5)
    api.wait_for(lambda api: running(api) == 0, FREED_WITHIN_S)


def test_leaving_before_the_first_token(api: Api) -> None:
    with api.stream("/api/inference", {"prompt": "x stub:first=120", **ECO}) as response:
        assert response.status_code == 200
        api.wait_for(lambda api: running(api) == 1, timeout_s=5)
    api.wait_for(lambda api: running(api) == 0, FREED_WITHIN_S)


@pytest.mark.parametrize("steering", ["stub:rate=5", "stub:first=120"])
def test_leaving_an_openai_stream(api: Api, steering: str) -> None:
    body = {**CHAT, "messages": [{"role": "user", "content": steering}], "stream": True}
    with api.stream("/v1/chat/completions", body):
        api.wait_for(lambda api: running(api) == 1, timeout_s=5)
    api.wait_for(lambda api: running(api) == 0, FREED_WITHIN_S)


def test_leaving_while_a_whole_openai_answer_is_made(api: Api) -> None:
    body = {**CHAT, "messages": [{"role": "user", "content": "stub:rate=5"}]}
    with httpx.Client(base_url=api.base_url, timeout=2.5) as impatient, pytest.raises(httpx.ReadTimeout):
        impatient.post("/v1/chat/completions", json=body)
    api.wait_for(lambda api: running(api) == 0, FREED_WITHIN_S)


def test_leaving_while_the_tier_is_loading_never_reaches_its_engine(broken: Api) -> None:
    # `performance` is cold here; the replica that this request wakes must find nothing to do.
    with broken.stream("/api/inference", {"prompt": "x stub:first=300", "mode": "manual", "power": 70}) as response:
        kinds = [next(events(response.iter_bytes()))[0]]
        assert kinds == ["config"]
    assert broken.tier("performance")["replicas"]["running"] == 0
    answer = broken.infer(prompt="y stub:tokens=2", mode="manual", power=70)
    assert len(answer.all("token")) == 2
    broken.wait_for(lambda api: api.tier("performance")["requests"]["running"] == 0, FREED_WITHIN_S)
