"""`profile: auto` follows the GPUs that the cluster has or can add, and says why."""

from __future__ import annotations

import pytest

from cluster.planner.supply import parse
from cluster.profiles.auto import GpuCount, addable_gpus, choose_profile
from cluster.profiles.reading import load_profile
from router.errors import ConfigError


@pytest.mark.parametrize(
    ("gpus", "profile", "reason"),
    [
        (None, "local", "no Ray cluster to ask for GPUs"),
        (GpuCount(0, 0), "local", "the cluster has no GPU, and no autoscaler config here names any"),
        (GpuCount(2, 0), "gpu", "the cluster has 2 GPUs, of no type that the planner knows"),
        (
            GpuCount(3, 0, parse("L4:1"), ("T4",)),
            "plan:L4:1",
            "the cluster has 3 GPUs (T4 left out, which the planner does not know); planned for L4:1, as gpu has no "
            "GPU here for balanced, performance, ultra",
        ),
        (GpuCount(0, 8), "gpu", "the cluster's autoscaler can add 8 GPUs, of no type that the planner knows"),
        (
            GpuCount(5, 0, parse("L4:1,A10G:1,A100-80G:1,H100:2")),
            "gpu",
            "the cluster has 5 GPUs, and every tier of the profile gpu has its own",
        ),
        (
            GpuCount(4, 8, parse("A10G:4")),
            "plan:A10G:4",
            "the cluster has 4 GPUs; planned for A10G:4, as gpu has no GPU here for eco, performance, ultra",
        ),
        (
            GpuCount(0, 5, parse("L4:1,A10G:1,A100-80G:1,2xH100:1")),
            "plan:L4:1,A10G:1,A100-80G:1,2xH100:1",
            "the cluster's autoscaler can add 5 GPUs; planned for L4:1,A10G:1,A100-80G:1,2xH100:1, as gpu has no GPU "
            "here for ultra",
        ),
    ],
)
def test_the_profile_follows_the_gpus(gpus: GpuCount | None, profile: str, reason: str) -> None:
    assert choose_profile(gpus) == (profile, reason)


def test_gpus_that_no_profile_is_for_are_an_error_that_names_them() -> None:
    with pytest.raises(
        ConfigError, match=r"^profile: auto: the cluster has 2 GPUs, .* knows \(GeForce-RTX-4090\): name"
    ):
        choose_profile(GpuCount(2, 0, (), ("GeForce-RTX-4090",)))


def test_an_autoscaler_can_add_the_gpus_of_all_nodes_that_its_config_allows() -> None:
    types = {
        "head": {"resources": {"CPU": 8}, "max_workers": 0},
        "h100": {"resources": {"CPU": 8, "GPU": 2}, "max_workers": 3},
        "l4": {"resources": {"GPU": 1}, "max_workers": 4},
        "bare": {},
    }
    assert addable_gpus({"available_node_types": types}) == 10
    assert addable_gpus({}) == 0


def test_a_planned_profile_loads_by_its_name() -> None:
    name, _ = choose_profile(GpuCount(1, 0, parse("L4:1")))
    assert {tier.gpu for tier in load_profile(name).tiers.values()} == {"L4"}
