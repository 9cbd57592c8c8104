"""Choose the profile that fits the cluster, for `profile: auto` in `serve_config.yaml`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray
import yaml

from cluster.planner.plan import plan
from cluster.planner.supply import Cards, node_gpus, of_nodes, unknown_types, written
from cluster.profiles import this_machine
from cluster.profiles.reading import PLANNED, load_profile
from cluster.ray_address import raise_if_silent
from router.errors import ConfigError

CLUSTER_CONFIG: Final = Path("~/ray_bootstrap_config.yaml")
"""Where `ray up` leaves its config on the head node. Ray has no call for what an autoscaler may add."""


@dataclass(frozen=True, slots=True)
class GpuCount:
    """GPUs that the cluster has now, and that its autoscaler can add at most."""

    present: float
    addable: float
    cards: tuple[Cards, ...] = ()
    """Those of both whose type is in the catalogue."""
    unknown: tuple[str, ...] = ()
    """The types of the others."""


def choose_profile(gpus: GpuCount | None) -> tuple[str, str]:
    """Return the profile and why. `gpus` is None without a cluster.

    `gpu` if every tier of it has its GPUs, else a plan for the GPUs that there are (`plan:L4:1`).

    Raises:
        ConfigError: there are GPUs, but none that the profile `gpu` names or the planner knows.
    """
    if gpus is None:
        return "local", "no Ray cluster to ask for GPUs"
    if gpus.present:
        found = f"the cluster has {gpus.present:g} GPUs"
    elif gpus.addable:
        found = f"the cluster's autoscaler can add {gpus.addable:g} GPUs"
    else:
        return "local", "the cluster has no GPU, and no autoscaler config here names any"
    if not gpus.cards and gpus.unknown and not gpus.addable:
        raise ConfigError(
            f"profile: auto: {found}, of no type that the planner knows ({', '.join(gpus.unknown)}): name a profile; "
            "docs/operations.md says how to plan for another card"
        )
    if not gpus.cards:
        return "gpu", f"{found}, of no type that the planner knows"
    if gpus.unknown:
        found += f" ({', '.join(gpus.unknown)} left out, which the planner does not know)"
    largest = {each.gpu: max(each.nodes) for each in gpus.cards}
    missing = [name for name, tier in load_profile("gpu").tiers.items() if largest.get(tier.gpu or "", 0) < tier.gpus]
    if not missing:
        return "gpu", f"{found}, and every tier of the profile gpu has its own"
    try:
        plan(gpus.cards)
    except ConfigError as error:
        return "gpu", f"{found}, but {error}"
    cards = written(gpus.cards)
    return f"{PLANNED}{cards}", f"{found}; planned for {cards}, as gpu has no GPU here for {', '.join(missing)}"


def name_of_auto() -> tuple[str, str]:
    """Return what `profile: auto` is here, and why: of the running cluster, or else of a Ray that is started here."""
    try:
        gpus = count_gpus_of_running_cluster()
    except ConnectionError:
        node = this_machine.resources(os.environ)
        gpus = GpuCount(float(node.get("GPU", 0)), 0.0, known_cards([node]), unknown_types([node]))
    return choose_profile(gpus)


def count_gpus_of_running_cluster() -> GpuCount:
    """Connect to the running cluster, count its GPUs, and leave it.

    Raises:
        ConnectionError: no cluster runs.
        ConfigError: `RAY_ADDRESS` is no address, or nobody answers there.
    """
    raise_if_silent(os.environ.get("RAY_ADDRESS"), where="RAY_ADDRESS")
    ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    try:
        return count_gpus()
    finally:
        ray.shutdown()


def count_gpus() -> GpuCount:
    """Count the GPUs of the cluster that this process is connected to."""
    path = CLUSTER_CONFIG.expanduser()
    config = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    present = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    # With an autoscaler the plan is for what it may add: nodes that it has added are among those present.
    addable = [each for each in addable_nodes(config) if each.get("GPU")]
    nodes = addable if known_cards(addable) else present
    return GpuCount(
        float(ray.cluster_resources().get("GPU", 0.0)),
        addable_gpus(config),
        known_cards(nodes),
        unknown_types(nodes),
    )


def known_cards(nodes: Iterable[Mapping[str, Any]]) -> tuple[Cards, ...]:
    """Return the cards of nodes, given by their resources, whose type the catalogue knows."""
    return of_nodes(found for each in nodes if (found := node_gpus(each)) is not None)


def addable_gpus(config: dict[str, Any]) -> float:
    """Return the GPUs of all nodes that a `ray up` config allows."""
    return sum(float(resources.get("GPU", 0)) for resources in addable_nodes(config))


def addable_nodes(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the resources of all nodes that a `ray up` config allows."""
    kinds = config.get("available_node_types", {}).values()
    return [dict(kind.get("resources", {})) for kind in kinds for _ in range(int(kind.get("max_workers", 0)))]
