"""A real engine on a node that the autoscaler added for it. The node only says that it has a GPU: vLLM uses its CPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from cluster.cpu_engine import cpu_environment
from tests.support.api import Api
from tests.support.gpu_cluster import IDLE_MINUTES, GpuCluster, gpu_cluster

CONFIG: Final[dict[str, Any]] = {
    "profile": "local",
    "tiers": {
        "eco": {"replicas": {"min": 0}},
        "balanced": {"gpu": "A10G", "gpus": 1, "cpus": 1, "idle_before_zero_s": 5},
    },
}


@pytest.fixture(scope="module")
def cluster(bundled_model: Path) -> Iterator[GpuCluster]:
    with gpu_cluster({"/": CONFIG}, cpu_environment(Path(sys.prefix))) as cluster:
        yield cluster


@pytest.fixture
def api(cluster: GpuCluster) -> Iterator[Api]:
    with Api(cluster.url) as api:
        yield api


def test_a_prompt_brings_up_a_node_an_engine_and_an_answer_and_leaves_nothing_behind(
    api: Api, cluster: GpuCluster
) -> None:
    assert cluster.gpu_nodes() == {}
    answer = api.infer(prompt="What is the capital of France?", mode="manual", power=40, temperature=0, max_tokens=12)
    assert answer.kinds[-1] == "done"
    assert "Paris" in answer.text
    assert answer.one("config")["gpu"] == "A10G"
    assert {status["state"] for status in answer.all("status")} >= {"provisioning", "loading"}
    assert list(cluster.gpu_nodes().values()) == ["A10G"]
    api.wait_for(lambda api: not api.get("/api/tiers").json()["gpus"]["types"], 60 + 60 * IDLE_MINUTES)
    assert cluster.gpu_nodes() == {}
