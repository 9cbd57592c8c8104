"""Choose the profile that fits the cluster, for `profile: auto` in `serve_config.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray
import yaml

CLUSTER_CONFIG: Final = Path("~/ray_bootstrap_config.yaml")
"""Where `ray up` leaves its config on the head node. Ray has no call for what an autoscaler may add."""


@dataclass(frozen=True, slots=True)
class GpuCount:
    """GPUs that the cluster has now, and that its autoscaler can add at most."""

    present: float
    addable: float


def choose_profile(gpus: GpuCount | None) -> tuple[str, str]:
    """Return the profile and why. `gpus` is None without a cluster."""
    if gpus is None:
        return "local", "no Ray cluster to ask for GPUs"
    if gpus.present:
        return "gpu", f"the cluster has {gpus.present:g} GPUs"
    if gpus.addable:
        return "gpu", f"the cluster's autoscaler can add {gpus.addable:g} GPUs"
    return "local", "the cluster has no GPU, and no autoscaler config here names any"


def count_gpus() -> GpuCount:
    """Count the GPUs of the cluster that this process is connected to."""
    path = CLUSTER_CONFIG.expanduser()
    config = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return GpuCount(float(ray.cluster_resources().get("GPU", 0.0)), addable_gpus(config))


def addable_gpus(config: dict[str, Any]) -> float:
    """Return the GPUs of all nodes that a `ray up` config allows."""
    return sum(
        float(kind.get("max_workers", 0)) * float(kind.get("resources", {}).get("GPU", 0))
        for kind in config.get("available_node_types", {}).values()
    )
