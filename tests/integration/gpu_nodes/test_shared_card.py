"""Four tiers of a plan for one L4 share the card of one node, as Ray counts it."""

from __future__ import annotations

import pytest

from router.registry import TIER_NAMES
from tests.integration.gpu_nodes.conftest import types
from tests.support.api import PATIENCE_S, Api
from tests.support.many_streams import Streams


def test_all_four_tiers_answer_from_one_card(shared: Api) -> None:
    # Each application watches the cluster by itself, so another one may have seen the last node go a little earlier.
    shared.wait_for(lambda api: types(api) == {})
    streams = Streams(shared.base_url)
    streams.start([{"prompt": "hello", "mode": "manual", "power": power} for power in (10, 40, 60, 95)])
    answers = streams.answers(timeout_s=PATIENCE_S)
    assert [answer.kinds[-1] for answer in answers] == ["done"] * 4
    assert [answer.one("config")["tier"] for answer in answers] == list(TIER_NAMES)
    shared.wait_for(lambda api: all(api.tier(name)["replicas"]["running"] == 1 for name in TIER_NAMES))
    seen = shared.get("/api/tiers").json()["gpus"]["types"]
    shares = sum(shared.tier(name)["gpus"] for name in TIER_NAMES)
    assert 0.9 < shares <= 1
    assert set(seen) == {"L4"}
    assert (seen["L4"]["nodes"], seen["L4"]["total"]) == (1, 1)
    assert seen["L4"]["free"] == pytest.approx(1 - shares)
