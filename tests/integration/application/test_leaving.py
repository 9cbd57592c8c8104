"""A client that leaves before a slow first token, or while its tier loads, frees the engine.

The other moments are tested on real engines (`tests/e2e/test_leaving.py`).

On a quiet machine that takes a second, and two more until `/api/tiers` shows it. A busy one may take longer; an engine
that is not freed works for minutes.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.support.api import Api, Json, events

FREED_WITHIN_S: Final = 60.0
"""Before the first token would have come."""
CHAT: Json = {"model": "eco", "max_tokens": 2000}


def running(api: Api) -> int:
    count: int = api.tier("eco")["requests"]["running"]
    return count


@pytest.fixture(autouse=True)
def _idle_before(api: Api) -> None:
    api.wait_for(lambda api: running(api) == 0)


def test_leaving_an_openai_stream_before_its_first_token(api: Api) -> None:
    body = {**CHAT, "messages": [{"role": "user", "content": "stub:first=120"}], "stream": True}
    with api.stream("/v1/chat/completions", body):
        api.wait_for(lambda api: running(api) == 1)
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
