"""`profile: auto` follows the GPUs that the cluster has or can add, and says why."""

from __future__ import annotations

import pytest

from cluster.profiles.auto import GpuCount, addable_gpus, choose_profile


@pytest.mark.parametrize(
    ("gpus", "profile", "reason"),
    [
        (None, "local", "no Ray cluster to ask for GPUs"),
        (GpuCount(0, 0), "local", "the cluster has no GPU, and no autoscaler config here names any"),
        (GpuCount(2, 0), "gpu", "the cluster has 2 GPUs"),
        (GpuCount(2, 8), "gpu", "the cluster has 2 GPUs"),
        (GpuCount(0, 8), "gpu", "the cluster's autoscaler can add 8 GPUs"),
    ],
)
def test_the_profile_follows_the_gpus(gpus: GpuCount | None, profile: str, reason: str) -> None:
    assert choose_profile(gpus) == (profile, reason)


def test_an_autoscaler_can_add_the_gpus_of_all_nodes_that_its_config_allows() -> None:
    types = {
        "head": {"resources": {"CPU": 8}, "max_workers": 0},
        "h100": {"resources": {"CPU": 8, "GPU": 2}, "max_workers": 3},
        "l4": {"resources": {"GPU": 1}, "max_workers": 4},
        "bare": {},
    }
    assert addable_gpus({"available_node_types": types}) == 10
    assert addable_gpus({}) == 0
