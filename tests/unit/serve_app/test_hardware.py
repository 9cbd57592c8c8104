"""`profile: auto` follows the GPUs that the cluster has or can add, and says why."""

from __future__ import annotations

import pytest

from serve_app.hardware import ClusterGpus, choose_profile


@pytest.mark.parametrize(
    ("gpus", "profile", "reason"),
    [
        (None, "local", "no Ray cluster to ask for GPUs"),
        (ClusterGpus(0, 0), "local", "the cluster has no GPU, and its autoscaler can add none"),
        (ClusterGpus(2, 0), "gpu", "the cluster has 2 GPUs"),
        (ClusterGpus(2, 8), "gpu", "the cluster has 2 GPUs"),
        (ClusterGpus(0, 8), "gpu", "the cluster's autoscaler can add 8 GPUs"),
    ],
)
def test_the_profile_follows_the_gpus(gpus: ClusterGpus | None, profile: str, reason: str) -> None:
    assert choose_profile(gpus) == (profile, reason)
