"""Replicas follow demand, nodes follow replicas: on Ray's own autoscaler, with nodes that only say they have a GPU."""

from __future__ import annotations

import time

from tests.integration.gpu_nodes.conftest import IDLE_S, types
from tests.support.api import Api
from tests.support.gpu_cluster import IDLE_MINUTES, GpuCluster
from tests.support.many_streams import Streams

BALANCED = {"mode": "manual", "power": 40}
NODE_UP_S = 60.0
"""A node of this machine is up within this; a cloud's takes minutes."""


def test_demand_on_one_tier_brings_up_a_node_of_its_gpu_type_only(api: Api) -> None:
    assert types(api) == {}
    answer = api.infer(prompt="x stub:tokens=5", **BALANCED)
    assert answer.kinds[-2:] == ["metrics", "done"]
    assert len(answer.all("token")) == 5
    assert answer.one("config")["warm"] is False
    told = answer.all("status")
    assert "provisioning" in {status["state"] for status in told}
    assert any("A10G" in (status["reason"] or "") for status in told)
    assert types(api) == {"A10G": 1}
    assert api.tier("balanced")["cold_start_s"] != 120  # measured now


def test_a_tier_whose_gpu_the_cluster_cannot_have_says_so_within_seconds_and_ends(elsewhere: Api) -> None:
    began_s = time.monotonic()
    answer = elsewhere.infer(prompt="x", mode="manual", power=95)
    assert time.monotonic() - began_s < 20
    error = answer.one("error")
    assert (error["code"], error["retryable"]) == ("tier_unavailable", True)
    assert "B200" in error["message"]
    assert any("B200" in (status["reason"] or "") for status in answer.all("status"))
    assert "B200" in elsewhere.tier("ultra")["reason"]


def test_three_times_the_load_scales_out_and_idle_returns_to_no_node(api: Api, cluster: GpuCluster) -> None:
    streams = Streams(cluster.url)
    # One replica works on eight at once.
    streams.start([{"prompt": f"{n} stub:tokens=900", "max_tokens": 900, **BALANCED} for n in range(24)])
    api.wait_for(lambda api: api.tier("balanced")["replicas"]["running"] == 3, 2 * NODE_UP_S)
    assert types(api) == {"A10G": 3}
    for answer in streams.answers(timeout_s=180):
        assert answer.kinds[-1] == "done"
        assert len(answer.all("token")) == 900
    api.wait_for(lambda api: api.tier("balanced")["replicas"]["running"] == 0, IDLE_S + 60)
    api.wait_for(lambda api: types(api) == {}, 60 * IDLE_MINUTES + 60)
    assert cluster.gpu_nodes() == {}
