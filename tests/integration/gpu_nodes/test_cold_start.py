"""A cold tier brings up a node for itself, and says so when the cluster cannot have its GPU.

The engine is real. Its node only says that it has a GPU: vLLM uses the CPU.
"""

from __future__ import annotations

import time
from pathlib import Path

from tests.integration.gpu_nodes.conftest import types
from tests.support.api import PATIENCE_S, Api
from tests.support.gpu_cluster import GpuCluster
from tests.support.many_streams import Streams


def test_a_prompt_brings_up_a_node_of_its_gpu_type_only_and_a_real_engine_that_answers(
    bundled_model: Path, engines: Api, cluster: GpuCluster
) -> None:
    assert types(engines) == {}
    assumed_s = engines.tier("balanced")["cold_start_s"]
    streams = Streams(engines.base_url)
    question = "What is the capital of France?"
    streams.start([{"prompt": question, "mode": "manual", "power": 40, "temperature": 0, "max_tokens": 12}])
    engines.wait_for(lambda api: "A10G" in (api.tier("balanced")["reason"] or ""))
    [answer] = streams.answers(PATIENCE_S)
    assert answer.kinds[-2:] == ["metrics", "done"]
    assert "Paris" in answer.text
    assert (answer.one("config")["gpu"], answer.one("config")["warm"]) == ("A10G", False)
    assert {status["state"] for status in answer.all("status")} >= {"provisioning", "loading"}
    assert types(engines) == {"A10G": 1}
    assert list(cluster.gpu_nodes().values()) == ["A10G"]
    assert engines.tier("balanced")["cold_start_s"] != assumed_s  # measured now


def test_a_tier_whose_gpu_the_cluster_cannot_have_says_so_within_seconds_and_ends(engines: Api) -> None:
    began_s = time.monotonic()
    answer = engines.infer(prompt="x", mode="manual", power=95)
    assert time.monotonic() - began_s < 60  # without the check: `request_timeout_s`, 15 minutes
    error = answer.one("error")
    assert (error["code"], error["retryable"]) == ("tier_unavailable", True)
    assert "B200" in error["message"]
    assert any("B200" in (status["reason"] or "") for status in answer.all("status"))
    assert "B200" in engines.tier("ultra")["reason"]
