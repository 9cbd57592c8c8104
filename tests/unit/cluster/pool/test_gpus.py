"""Ray's cluster status becomes GPUs by type, and the reason why a replica has no place."""

from __future__ import annotations

from typing import Any

import pytest
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply, NodeStatus

from cluster.pool.gpus import LatelyInfeasible, cluster_gpus, placement
from router.observation import ClusterGpus, GpuSupply
from router.registry import Tier
from tests.unit.router.profiles import small_profile


def tier(**over: Any) -> Tier:
    return small_profile().tiers["eco"].model_copy(update={"gpu": "A10G", "gpus": 1} | over)


def reply(nodes: list[tuple[dict[str, float], dict[str, float]]], autoscaler: bool = True) -> GetClusterStatusReply:
    """Nodes as (what they have, what of it is free)."""
    made = GetClusterStatusReply()
    for total, free in nodes:
        node = made.cluster_resource_state.node_states.add(status=NodeStatus.RUNNING)
        node.total_resources.update(total)
        node.available_resources.update(free)
    made.autoscaling_state.autoscaler_state_version = int(autoscaler)
    return made


A10G = {"CPU": 4.0, "GPU": 1.0, "accelerator_type:A10G": 1.0}
H100 = {"CPU": 8.0, "GPU": 2.0, "accelerator_type:H100": 1.0}


def test_nodes_add_up_by_accelerator_type() -> None:
    seen = cluster_gpus(reply([({"CPU": 8}, {"CPU": 8}), (A10G, {"CPU": 4}), (A10G, A10G), (H100, H100 | {"GPU": 1})]))
    assert seen.types == {
        "A10G": GpuSupply(nodes=2, gpus=2, free=1, largest=1),
        "H100": GpuSupply(nodes=1, gpus=2, free=1, largest=2),
    }
    assert seen.autoscaler


def test_a_node_that_has_died_is_not_supply() -> None:
    status = reply([(A10G, A10G)])
    status.cluster_resource_state.node_states[0].status = NodeStatus.DEAD
    assert cluster_gpus(status).types == {}


def test_the_autoscalers_actions_are_shown_under_its_own_node_types() -> None:
    status = reply([])
    scaler = status.autoscaling_state
    scaler.pending_instance_requests.add(ray_node_type_name="a10g-node", count=2)
    scaler.pending_instances.add(ray_node_type_name="a10g-node")
    scaler.failed_instance_requests.add(ray_node_type_name="h100-node", reason="no capacity")
    request = scaler.infeasible_resource_requests.add()
    request.resources_bundle.update({"GPU": 1.0, "accelerator_type:A100-80G": 0.001})
    seen = cluster_gpus(status)
    assert seen.coming == {"a10g-node": 3}
    assert seen.failures == {"h100-node": "no capacity"}
    assert seen.infeasible == {"A100-80G"}


def supply(nodes: int = 1, gpus: float = 1, free: float = 1, largest: float = 1) -> dict[str, GpuSupply]:
    return {"A10G": GpuSupply(nodes, gpus, free, largest)}


WAITS = "waiting for a replica to be placed"


@pytest.mark.parametrize(
    ("gpus", "reason", "hopeless"),
    [
        (None, WAITS, False),
        (ClusterGpus(), "the cluster has no node with 1 A10G GPU, and it has no autoscaler to add one", True),
        (ClusterGpus(autoscaler=True), "waiting for a node with 1 A10G GPU", False),
        (
            ClusterGpus(autoscaler=True, infeasible=frozenset({"A10G"})),
            "the cluster has no node with 1 A10G GPU, and its autoscaler can add none",
            True,
        ),
        (
            ClusterGpus(autoscaler=True, coming={"g5": 2, "p5": 1}),
            "waiting for a node with 1 A10G GPU; being added: 2 x g5, 1 x p5",
            False,
        ),
        (
            ClusterGpus(autoscaler=True, failures={"g5": "no capacity"}),
            "waiting for a node with 1 A10G GPU; the last ones could not be added: g5: no capacity",
            False,
        ),
        (ClusterGpus(supply()), WAITS, False),
        (ClusterGpus(supply(2, 2, 0)), "all 2 A10G GPUs are in use, and no more can be added", False),
        (ClusterGpus(supply(2, 2, 0), autoscaler=True), "waiting for a node with 1 A10G GPU", False),
        (
            ClusterGpus(supply(2, 2, 0), autoscaler=True, infeasible=frozenset({"A10G"})),
            "all 2 A10G GPUs are in use, and no more can be added",
            False,
        ),
    ],
)
def test_the_reason_why_a_replica_has_no_place(gpus: ClusterGpus | None, reason: str, hopeless: bool) -> None:
    assert placement(tier(), gpus) == (reason, hopeless)


def test_a_replica_needs_all_its_gpus_on_one_node() -> None:
    gpus = ClusterGpus(supply(nodes=4, gpus=4, free=4, largest=1))
    reason = "the cluster has no node with 2 A10G GPUs, and it has no autoscaler to add one"
    assert placement(tier(gpus=2), gpus) == (reason, True)


def test_a_replica_may_take_a_share_of_a_card() -> None:
    assert placement(tier(gpus=0.4), ClusterGpus(supply(free=0.5))) == (WAITS, False)
    reason = "the cluster has no node with 0.4 A10G GPU, and it has no autoscaler to add one"
    assert placement(tier(gpus=0.4), ClusterGpus()) == (reason, True)


def test_a_cpu_tier_never_waits_for_a_gpu() -> None:
    assert placement(tier(gpu=None, gpus=0), ClusterGpus()) == (WAITS, False)


def test_what_the_autoscaler_could_not_add_stays_infeasible_for_ten_minutes_after_it_last_said_so() -> None:
    lately = LatelyInfeasible()
    said = ClusterGpus(autoscaler=True, infeasible=frozenset({"H100"}))
    silent = ClusterGpus(autoscaler=True, infeasible=frozenset())
    assert lately.added_to(silent, 0) == silent
    assert lately.added_to(said, 10) == said
    assert lately.added_to(silent, 610) == said
    assert lately.added_to(silent, 611) == silent


def test_a_node_that_comes_all_the_same_counts_at_once() -> None:
    lately = LatelyInfeasible()
    lately.added_to(ClusterGpus(autoscaler=True, infeasible=frozenset({"L4"})), 0)
    came = ClusterGpus({"L4": GpuSupply(1, 1.0, 1.0, 1.0)}, autoscaler=True)
    assert placement(small_profile().tiers["eco"], lately.added_to(came, 5))[1] is False
