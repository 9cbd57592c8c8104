"""One cluster with GPU nodes that come and go, and stub engines on them, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.support.api import Api
from tests.support.gpu_cluster import GpuCluster, gpu_cluster

IDLE_S: Final = 4.0
_TIER: Final = {"cpus": 1, "idle_before_zero_s": IDLE_S, "drain_s": 90}
# The GPU profile with stub engines: its four tiers and GPU types, at a pace that a test can wait for.
MAIN: Final[dict[str, Any]] = {
    "profile": "gpu",
    "inference_mode": "mock",
    "stub": {"tokens_per_s": 20.0},
    "scaling": {"hold_s": 6.0},
    "tiers": {
        "eco": _TIER,
        "balanced": _TIER | {"max_ongoing_requests": 8, "replicas": {"min": 0, "max": 3}},
        "performance": _TIER,
        "ultra": _TIER | {"gpus": 2},
    },
}
# The same on a cluster that cannot have what one tier wants.
ELSEWHERE: Final[dict[str, Any]] = MAIN | {"tiers": MAIN["tiers"] | {"ultra": _TIER | {"gpu": "B200", "gpus": 1}}}


@pytest.fixture(scope="package")
def cluster() -> Iterator[GpuCluster]:
    with gpu_cluster({"/": MAIN, "/elsewhere": ELSEWHERE}) as cluster:
        yield cluster


@pytest.fixture
def api(cluster: GpuCluster) -> Iterator[Api]:
    with Api(cluster.url) as api:
        yield api


@pytest.fixture
def elsewhere(cluster: GpuCluster) -> Iterator[Api]:
    with Api(f"{cluster.url}/elsewhere") as api:
        yield api


def types(api: Api) -> dict[str, int]:
    """Nodes by accelerator type, as the application sees them."""
    return {name: seen["nodes"] for name, seen in api.get("/api/tiers").json()["gpus"]["types"].items()}
