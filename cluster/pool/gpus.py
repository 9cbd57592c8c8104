"""The cluster's GPUs by accelerator type: present, free, being added, or impossible to add."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply, NodeStatus

from router.observation import ClusterGpus, GpuSupply
from router.registry import Tier

_ACCELERATOR: Final = "accelerator_type:"
"""Prefix of the resource by which Ray marks a node's type of GPU."""
_TIMEOUT_S: Final = 10.0
_INFEASIBLE_FOR_S: Final = 600.0
"""What the autoscaler could not add is not tried again for so long, s. A node that comes anyway counts at once."""


def placement(tier: Tier, gpus: ClusterGpus | None) -> tuple[str, bool]:
    """Return why a replica of the tier has no place yet, and whether it never will have one.

    Args:
        tier: the tier.
        gpus: of the cluster; None before the first refresh.
    """
    if tier.gpu is None or gpus is None:
        return "waiting for a replica to be placed", False
    supply = gpus.types.get(tier.gpu, GpuSupply())
    fits = supply.largest >= tier.gpus
    needed = f"{tier.gpus:g} {tier.gpu} GPU{'' if tier.gpus <= 1 else 's'}"
    if not fits and (tier.gpu in gpus.infeasible or not gpus.autoscaler):
        # Ray's old autoscaler (v1) publishes no state, so it looks like none.
        adds = "its autoscaler can add none" if gpus.autoscaler else "it has no autoscaler to add one"
        return f"the cluster has no node with {needed}, and {adds}", True
    if gpus.coming:
        coming = ", ".join(f"{count} x {name}" for name, count in sorted(gpus.coming.items()))
        return f"waiting for a node with {needed}; being added: {coming}", False
    if fits and supply.free >= tier.gpus:
        return "waiting for a replica to be placed", False
    if gpus.failures:
        failures = "; ".join(f"{name}: {reason}" for name, reason in sorted(gpus.failures.items()))
        return f"waiting for a node with {needed}; the last ones could not be added: {failures}", False
    if fits and (tier.gpu in gpus.infeasible or not gpus.autoscaler):
        return f"all {supply.gpus:g} {tier.gpu} GPUs are in use, and no more can be added", False
    return f"waiting for a node with {needed}", False


class LatelyInfeasible:
    """Accelerator types that the autoscaler could not add lately.

    It says so only while a replica waits for one. When the replica is given up it says nothing, and the tier would look
    as if it could start: every few minutes a request would be sent there to fail.
    """

    def __init__(self) -> None:
        self._said_s: dict[str, float] = {}
        """By accelerator type: when it was last said."""

    def added_to(self, gpus: ClusterGpus, now_s: float) -> ClusterGpus:
        """Return the cluster's GPUs, with what was infeasible in the last `_INFEASIBLE_FOR_S` seconds too."""
        self._said_s |= dict.fromkeys(gpus.infeasible, now_s)
        self._said_s = {name: said_s for name, said_s in self._said_s.items() if now_s - said_s <= _INFEASIBLE_FOR_S}
        return replace(gpus, infeasible=frozenset(self._said_s))


def read_cluster_gpus() -> ClusterGpus:
    """Ask Ray for the cluster's GPUs. Blocks for some milliseconds.

    Ray's own reader of this answer (`ray.autoscaler.v2.sdk`) leaves out infeasible requests.
    """
    reply = GcsClient(ray.get_runtime_context().gcs_address).get_cluster_status(timeout_s=_TIMEOUT_S)
    return cluster_gpus(GetClusterStatusReply.FromString(reply))


def cluster_gpus(status: GetClusterStatusReply) -> ClusterGpus:
    """Return Ray's cluster status as `ClusterGpus`."""
    types: dict[str, GpuSupply] = {}
    for node in status.cluster_resource_state.node_states:
        gpus = node.total_resources.get("GPU", 0.0)
        if node.status == NodeStatus.DEAD or not gpus:
            continue
        for name in _accelerators(node.total_resources):
            before = types.get(name, GpuSupply())
            types[name] = GpuSupply(
                nodes=before.nodes + 1,
                gpus=before.gpus + gpus,
                free=before.free + node.available_resources.get("GPU", 0.0),
                largest=max(before.largest, gpus),
            )
    scaler = status.autoscaling_state
    coming: dict[str, int] = {}
    for launch in scaler.pending_instance_requests:
        coming[launch.ray_node_type_name] = coming.get(launch.ray_node_type_name, 0) + launch.count
    for node in scaler.pending_instances:
        coming[node.ray_node_type_name] = coming.get(node.ray_node_type_name, 0) + 1
    return ClusterGpus(
        types=types,
        autoscaler=scaler.autoscaler_state_version > 0,
        coming=coming,
        failures={failed.ray_node_type_name: failed.reason for failed in scaler.failed_instance_requests},
        infeasible=frozenset(
            name for request in scaler.infeasible_resource_requests for name in _accelerators(request.resources_bundle)
        ),
    )


def _accelerators(resources: Mapping[str, float]) -> list[str]:
    return [name.removeprefix(_ACCELERATOR) for name in resources if name.startswith(_ACCELERATOR)]
