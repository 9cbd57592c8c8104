"""The cluster manifests, and what they must agree with: the profile `gpu`, serve.env, pinned versions, Ray."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from ray.autoscaler._private.node_provider_availability_tracker import NodeAvailabilitySummary
from ray.autoscaler._private.resource_demand_scheduler import _default_utilization_scorer, get_nodes_for

from cluster.profiles.reading import load_profile
from router.registry import Tier, TierName
from serve_app.app import actor_options

ROOT = Path(__file__).parents[2]


def documents(path: str) -> list[Any]:
    """Return every YAML document of a file; its path is relative to the repository."""
    return list(yaml.safe_load_all((ROOT / path).read_text(encoding="utf-8")))


def document(path: str) -> Any:
    """Return the only YAML document of a file."""
    (only,) = documents(path)
    return only


def gpu_tiers() -> Mapping[TierName, Tier]:
    return load_profile("gpu").tiers


def serve_env() -> dict[str, str]:
    """Return the variables of cluster/serve.env."""
    lines = (ROOT / "cluster/serve.env").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def rooms() -> set[str]:
    """Return the top-level packages of an installation."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {pattern.removesuffix("*") for pattern in project["tool"]["setuptools"]["packages"]["find"]["include"]}


def pinned(package: str) -> str:
    """Return the package's version in requirements/gpu.txt."""
    text = (ROOT / "requirements/gpu.txt").read_text(encoding="utf-8")
    (version,) = re.findall(rf"^{re.escape(package)}==([^\s\\]+)", text, re.MULTILINE)
    return str(version)


def demand_of(tier: Tier) -> dict[str, float]:
    """Return the resources that one replica requests, in the form of Ray's autoscaler."""
    options = actor_options(tier, Path())
    # Ray turns an accelerator type into a resource: a node has 1 of it, and each replica takes a thousandth.
    accelerator = f"accelerator_type:{options['accelerator_type']}"
    return {"CPU": options["num_cpus"], "GPU": options["num_gpus"], accelerator: 0.001}


def nodes_added(
    node_types: Mapping[str, Any], head: str, most: int, demands: list[dict[str, float]]
) -> tuple[dict[str, int], list[dict[str, float]]]:
    """Return the nodes that Ray's autoscaler would add to a lone head for these demands, and the demands left over."""
    scorer = partial(_default_utilization_scorer, node_availability_summary=NodeAvailabilitySummary({}))
    added, unplaced = get_nodes_for(dict(node_types), {head: 1}, head, most, demands, scorer)
    return dict(added), unplaced
