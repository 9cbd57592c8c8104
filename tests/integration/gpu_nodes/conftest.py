"""One cluster with GPU nodes that come and go, for the tests of this folder: stub engines, and one real engine."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from cluster.cpu_environment import cpu_environment
from cluster.profiles.reading import merge, read_profile
from router.registry import TIER_NAMES
from tests.support.api import Api
from tests.support.gpu_cluster import GpuCluster, gpu_cluster

IDLE_S: Final = 4.0
_TIER: Final = {"cpus": 1, "idle_before_zero_s": IDLE_S, "drain_s": 90}
# The GPU profile with stub engines: its four tiers and GPU types, at a pace that a test can wait for.
_STUBS: Final[dict[str, Any]] = {
    "profile": "gpu",
    "inference_mode": "mock",
    "stub": {"tokens_per_s": 20.0},
    "tiers": {
        "eco": _TIER,
        # Three replicas run all 32 streams of a test at once.
        "balanced": _TIER | {"max_ongoing_requests": 11, "replicas": {"min": 0, "max": 3}},
        "performance": _TIER,
        "ultra": _TIER | {"gpus": 2},
    },
}
# vLLM's build for CPUs on nodes that only pretend to have a GPU: n-gram drafts are refused there, and it has no V2.
_CPU_ENTRY: Final = read_profile("local")["tiers"]["balanced"]["chain"][-1] | {"runner": "v1"}
# Real engines; one tier asks for a GPU that the cluster cannot have.
_ENGINES: Final[dict[str, Any]] = {
    "profile": "local",
    "tiers": {
        "eco": {"replicas": {"min": 0}},
        "balanced": {"gpu": "A10G", "gpus": 1, "cpus": 1, "idle_before_zero_s": IDLE_S, "chain": [_CPU_ENTRY]},
        "ultra": {"gpu": "B200", "gpus": 1, "cpus": 1, "chain": [_CPU_ENTRY]},
    },
}


# A plan for one card, with stub engines: four tiers with shares of an L4.
_SHARED: Final[dict[str, Any]] = {
    "profile": "plan:L4:1",
    "inference_mode": "mock",
    "stub": {"tokens_per_s": 20.0},
    "tiers": {name: {"idle_before_zero_s": 4 * IDLE_S, "drain_s": 90} for name in TIER_NAMES},
}


def applications(**over: Any) -> Mapping[str, Mapping[str, Any]]:
    """All applications by route prefix, with arguments laid over those of the first one."""
    return {"/": merge(_STUBS, over), "/engines": _ENGINES, "/shared": _SHARED}


@pytest.fixture(scope="package")
def cluster() -> Iterator[GpuCluster]:
    with gpu_cluster(applications(), cpu_environment(Path(sys.prefix))) as cluster:
        yield cluster


@pytest.fixture
def api(cluster: GpuCluster) -> Iterator[Api]:
    """The application with stub engines."""
    with Api(cluster.url) as api:
        yield api


@pytest.fixture
def engines(cluster: GpuCluster) -> Iterator[Api]:
    """The application with real engines."""
    with Api(f"{cluster.url}/engines") as api:
        yield api


@pytest.fixture
def shared(cluster: GpuCluster) -> Iterator[Api]:
    """The application whose tiers share a card."""
    with Api(f"{cluster.url}/shared") as api:
        yield api


def types(api: Api) -> dict[str, int]:
    """Nodes by accelerator type, as the application sees them."""
    return {name: seen["nodes"] for name, seen in api.get("/api/tiers").json()["gpus"]["types"].items()}
