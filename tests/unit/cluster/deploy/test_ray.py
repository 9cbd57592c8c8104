"""The files for `ray up`: Ray accepts them, their commands do what they say, and their nodes fit the tiers."""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
from ray._private.authentication.authentication_token_setup import _get_default_token_path
from ray.autoscaler._private.local.config import LOCAL_CLUSTER_NODE_TYPE
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.util.accelerators import accelerators

from tests.support.manifests import ROOT, demand_of, document, gpu_tiers, nodes_added, rooms, serve_env

OWN, AWS = "cluster/deploy/ray/cluster.yaml", "cluster/deploy/ray/cluster_aws.yaml"
BOTH = pytest.mark.parametrize("path", [OWN, AWS])
TOKEN = "~/.ray/auth_token"
A100 = "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-0)"


@BOTH
def test_ray_accepts_the_file(path: str) -> None:
    prepared = prepare_config(document(path))
    validate_config(prepared)
    assert prepared["cluster_name"] == "power-lever"


def test_own_machines_stay_in_the_cluster() -> None:
    prepared = prepare_config(document(OWN))
    machines = len(document(OWN)["provider"]["worker_ips"])
    node_type = prepared["available_node_types"][LOCAL_CLUSTER_NODE_TYPE]
    assert (node_type["min_workers"], node_type["max_workers"]) == (machines, machines)


def test_rays_local_provider_still_refuses_node_types() -> None:
    # The reason why cluster/deploy/ray/cluster.yaml has none. When this fails, it can have one for each GPU type.
    own = document(OWN) | {"available_node_types": {"l4": {"resources": {}, "node_config": {}}}, "head_node_type": "l4"}
    with pytest.raises(click.ClickException):
        prepare_config(own)


@pytest.mark.parametrize("name", ["eco", "balanced", "performance", "ultra"])
def test_rays_autoscaler_would_add_aws_machines_for_all_replicas_of_a_tier(name: Any) -> None:
    tier = gpu_tiers()[name]
    aws = prepare_config(document(AWS))
    node_types = aws["available_node_types"]
    added, unplaced = nodes_added(
        node_types, aws["head_node_type"], aws["max_workers"], [demand_of(tier)] * tier.replicas.max
    )
    assert unplaced == []
    ((node_type, count),) = added.items()
    assert node_types[node_type]["resources"][f"accelerator_type:{tier.gpu}"] == 1
    assert count <= node_types[node_type]["max_workers"] <= tier.replicas.max
    assert node_types[node_type]["min_workers"] == 0


def test_all_tiers_fit_on_aws_at_once_and_cpu_only_actors_stay_on_the_head() -> None:
    aws = prepare_config(document(AWS))
    demands = [demand_of(tier) for tier in gpu_tiers().values() for _ in range(tier.replicas.max)]
    added, unplaced = nodes_added(aws["available_node_types"], aws["head_node_type"], aws["max_workers"], demands)
    assert (unplaced, sum(added.values())) == ([], aws["max_workers"])
    assert aws["available_node_types"]["head"]["resources"] == {"CPU": 8, "GPU": 0}


def test_gpu_types_are_those_that_ray_knows() -> None:
    known = {value for name, value in vars(accelerators).items() if name.isupper()}
    assert {tier.gpu for tier in gpu_tiers().values()} <= known
    for node_type in document(AWS)["available_node_types"].values():
        types = {key.partition(":")[2] for key in node_type["resources"] if key.startswith("accelerator_type:")}
        assert types <= known


def code_mounts(path: str) -> dict[str, str]:
    """Return what is synced under ~/power-lever."""
    return {there: here for there, here in document(path)["file_mounts"].items() if there != TOKEN}


@BOTH
def test_all_nodes_get_the_token_of_the_machine_that_started_them(path: str) -> None:
    assert document(path)["file_mounts"][TOKEN] == TOKEN
    assert Path(TOKEN).expanduser() == _get_default_token_path()


@BOTH
def test_nodes_run_without_a_container_whose_shared_memory_would_be_small(path: str) -> None:
    # Whoever adds one: Ray itself then passes `--shm-size` with 30% of the machine's memory (`_auto_configure_shm`).
    prepared = prepare_config(document(path))
    assert not prepared.get("docker")
    assert all("docker" not in node_type for node_type in prepared["available_node_types"].values())


@BOTH
def test_the_synced_code_is_complete(path: str) -> None:
    mounts = code_mounts(path)
    assert {remote.removeprefix("~/power-lever/") for remote in mounts} == set(mounts.values())
    assert set(mounts.values()) == rooms() | {
        "Makefile",
        "README.md",
        "pyproject.toml",
        "serve_config.yaml",
        "requirements",
    }
    assert all((ROOT / local).exists() for local in mounts.values())
    assert "make -C ~/power-lever install HARDWARE=gpu" in document(path)["setup_commands"]


HAPROXY = "RAY_SERVE_HAPROXY_BINARY_PATH"
STARTED_WITH = {"MODELS_DIR": "/mnt/models", "RAY_AUTH_MODE": "token"}


def run_with_fake_ray(command: str, home: Path, gpus: str) -> list[str]:
    """Run a node's start command with a fake `ray`; return how it was called."""
    lever, binaries = home / "power-lever", home / "power-lever/.venv/bin"
    (lever / "cluster").mkdir(parents=True)
    binaries.mkdir(parents=True)
    (lever / "cluster/serve.env").write_text((ROOT / "cluster/serve.env").read_text())
    (binaries / "activate").write_text(f"export PATH={shlex.quote(str(binaries))}:$PATH")
    names = [*serve_env(), HAPROXY, *STARTED_WITH]
    for name, script in (
        ("power-lever-haproxy", ""),
        ("ray", "\n".join(['printf "%s\\n" "$@"', *(f'echo "{name}=${name}"' for name in names)])),
        ("nvidia-smi", f"echo {shlex.quote(gpus)}"),
    ):
        (binaries / name).write_text(f"#!/bin/bash\n{script}\n")
        (binaries / name).chmod(stat.S_IRWXU)
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "RAY_HEAD_IP": "10.0.0.10"}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@BOTH
@pytest.mark.parametrize("role", ["head", "worker"])
def test_ray_is_started_with_the_environment_of_serve_env_the_models_folder_and_the_token(
    path: str, role: str, tmp_path: Path
) -> None:
    command = document(path)[f"{role}_start_ray_commands"][-1]
    calls = run_with_fake_ray(command, tmp_path, gpus="")
    expected = {
        "head": ["start", "--head", "--port=6379", "--autoscaling-config=~/ray_bootstrap_config.yaml"],
        "worker": ["start", "--address=10.0.0.10:6379"],
    }[role]
    haproxy = {HAPROXY: str(tmp_path / "power-lever/.venv/bin/power-lever-haproxy")}
    environment = [f"{name}={value}" for name, value in (serve_env() | haproxy | STARTED_WITH).items()]
    assert calls == expected + environment


@pytest.mark.parametrize(
    ("gpus", "calls"),
    [
        (A100, ['--resources={"accelerator_type:A100-80G":1}']),
        ("GPU 0: NVIDIA A100 80GB PCIe (UUID: GPU-0)", ['--resources={"accelerator_type:A100-80G":1}']),
        ("GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0)", ['--resources={"accelerator_type:A100-40G":1}']),
        (f"{A100}\n{A100}", ['--resources={"accelerator_type:A100-80G":1}']),
        ("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)", []),
    ],
)
def test_an_own_machine_names_its_a100_by_its_memory(gpus: str, calls: list[str], tmp_path: Path) -> None:
    command = document(OWN)["worker_start_ray_commands"][-1]
    assert [line for line in run_with_fake_ray(command, tmp_path, gpus) if "resources" in line] == calls


def test_the_models_folder_is_mounted_before_ray_starts_on_aws() -> None:
    setup = document(AWS)["setup_commands"]
    (mount,) = [command for command in setup if re.search(r"mount -t nfs4 .* /mnt/models$", command)]
    assert mount.startswith("mountpoint -q /mnt/models ||")
