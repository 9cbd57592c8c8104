"""Which profile fits the cluster, when `serve_config.yaml` says `profile: auto`."""

from __future__ import annotations

from dataclasses import dataclass

import ray


@dataclass(frozen=True, slots=True)
class ClusterGpus:
    """GPUs that the cluster has now, and that its autoscaler could have at most."""

    present: float
    addable: float


def choose_profile(gpus: ClusterGpus | None) -> tuple[str, str]:
    """(profile, why). None: there is no cluster to ask."""
    if gpus is None:
        return "local", "no Ray cluster to ask for GPUs"
    if gpus.present:
        return "gpu", f"the cluster has {gpus.present:g} GPUs"
    if gpus.addable:
        return "gpu", f"the cluster's autoscaler can add {gpus.addable:g} GPUs"
    return "local", "the cluster has no GPU, and its autoscaler can add none"


def cluster_gpus() -> ClusterGpus:
    """What Ray says of this cluster."""
    present = ray.cluster_resources().get("GPU", 0.0)
    # No public call tells what an autoscaler may add; Ray's own schedulers read it here.
    largest = ray._private.state.state.get_max_resources_from_cluster_config() or {}
    return ClusterGpus(float(present), float(largest.get("GPU", 0.0)))
