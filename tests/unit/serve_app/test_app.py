"""The nodes on which the application's parts may run."""

from __future__ import annotations

import pytest
from ray._raylet import node_labels_match_selector  # type: ignore[attr-defined]

from cluster.profiles.reading import load_profile
from serve_app.app import actor_options, off_gpu_nodes


@pytest.mark.parametrize("gpu", ["L4", "A10G", "A100", "A100-80G", "H100"])
def test_ray_keeps_cpu_only_actors_off_every_gpu_node_of_the_profile(gpu: str) -> None:
    selector = off_gpu_nodes(load_profile("gpu"))["label_selector"]
    assert not node_labels_match_selector({"ray.io/accelerator-type": gpu}, selector)


def test_ray_prefers_a_node_without_a_gpu_and_falls_back_to_any() -> None:
    options = off_gpu_nodes(load_profile("gpu"))
    assert node_labels_match_selector({}, options["label_selector"])
    assert options["fallback_strategy"] == [{"label_selector": {}}]


def test_a_profile_without_gpus_needs_no_label() -> None:
    assert off_gpu_nodes(load_profile("local")) == {}


def test_a_replica_asks_ray_for_its_share_of_a_card() -> None:
    tier = load_profile("gpu").tiers["eco"].model_copy(update={"gpus": 0.4})
    assert actor_options(tier) == {"num_cpus": tier.cpus, "num_gpus": 0.4, "accelerator_type": "L4"}
