"""The SkyPilot task: a launch for each tier's GPU, and a node that ends itself when idle."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.manifests import ROOT, document, gpu_tiers, serve_env

PATH = "cluster/deploy/sky/cluster.yaml"
RAY_NAMES = {"A100-80GB": "A100-80G"}  # of what SkyPilot calls otherwise


def test_there_is_a_launch_for_each_tiers_gpu_with_enough_gpus_for_a_replica() -> None:
    launches = re.findall(r"--gpus (\S+):(\d+)", (ROOT / PATH).read_text(encoding="utf-8"))
    gpus = {RAY_NAMES.get(name, name): int(count) for name, count in launches}
    for tier in gpu_tiers().values():
        assert gpus[str(tier.gpu)] >= tier.gpus


def test_a_machine_is_a_spot_machine_and_is_terminated_after_its_job() -> None:
    resources = document(PATH)["resources"]
    assert resources["use_spot"] is True
    assert resources["autostop"] == {"idle_minutes": 1, "down": True}


def test_every_documented_launch_passes_the_token() -> None:
    launches = re.findall(r"sky launch .*", (ROOT / PATH).read_text(encoding="utf-8"))
    assert len(launches) == 5
    assert all(launch.endswith("--secret RAY_AUTH_TOKEN") for launch in launches)


SKYPILOT = Path(sys.prefix) / "sky/bin/python"
PARSE = """
import json, sys, sky, yaml
def parsed(text, envs):
    try:
        task = sky.Task.from_yaml_config(
            yaml.safe_load(text), env_overrides=envs, secrets_overrides=json.loads(sys.argv[1])
        )
    except Exception as error:
        return str(error)
    (resources,) = task.resources
    return {"name": task.name, "spot": resources.use_spot, "cloud": str(resources.cloud),
        "region": resources.region, "envs": task.envs, "secrets": list(task.secrets),
        "docker": resources.docker_login_config, "image": resources.image_id, "stores": list(task.storage_mounts)}
print(json.dumps([parsed(text, envs) for text, envs in json.load(sys.stdin)]))
"""


TOKEN = {"RAY_AUTH_TOKEN": "0" * 32}


def parsed(tasks: list[tuple[str, list[tuple[str, str]]]], tmp_path: Path) -> list[Any]:
    """Return how SkyPilot parses each task with its environment, or why it does not."""
    done = subprocess.run(
        [SKYPILOT, "-c", PARSE, json.dumps(list(TOKEN.items()))],
        input=json.dumps(tasks),
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


@pytest.mark.skipif(not SKYPILOT.exists(), reason="`make install-dev` installs SkyPilot, nothing else does")
def test_skypilot_accepts_the_task_with_a_bucket(tmp_path: Path) -> None:
    text = (ROOT / PATH).read_text(encoding="utf-8")
    bucket = [("MODELS_BUCKET", "models")]
    tasks = [(text, bucket), (text, []), (text.replace("use_spot:", "use_spots:"), bucket)]
    accepted, without, misspelt = parsed(tasks, tmp_path)
    assert accepted == {
        "name": "power-lever",
        "spot": True,
        "cloud": "AWS",
        "region": "us-east-1",
        "envs": {"HEAD": "", "MODELS_BUCKET": "models", "MODELS_DIR": "/mnt/models"},
        "secrets": ["RAY_AUTH_TOKEN"],
        "docker": None,
        "image": None,  # no container, whose shared memory would be small
        "stores": ["/mnt/models"],
    }
    assert "MODELS_BUCKET" in without
    assert "use_spots" in misspelt


def run_node(home: Path, *, head: str, busy_minutes: int, gpus: str = "") -> list[str]:
    """Run the task's `run` with fake commands; return how they were called."""
    binaries, calls = home / ".venv/bin", home / "calls"
    binaries.mkdir(parents=True)
    (home / "cluster").mkdir()
    (home / "cluster/serve.env").write_text((ROOT / "cluster/serve.env").read_text())
    (home / "busy").write_text("x" * busy_minutes)
    (binaries / "activate").write_text(f"export PATH={binaries}:$PATH")
    names = [
        *serve_env(),
        HAPROXY,
        "MODELS_DIR",
        "RAY_AUTH_MODE",
        "RAY_AUTH_TOKEN",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S",
    ]
    environment = "; ".join(f'echo "{name}=${name}" >> {calls}' for name in names)
    for name, script in {
        "ray": f'echo ray "$@" >> {calls}; {environment}; case "$*" in *--block*) '
        f"trap 'echo drained >> {calls}; exit 0' TERM; while :; do /bin/sleep 0.05; done;; esac",
        "power-lever": f'echo power-lever "$@" >> {calls}',
        "power-lever-haproxy": "",
        "sleep": f"echo minute >> {calls}; /bin/sleep 0.1",
        "curl": f"[ -s {home}/busy ] && truncate --size=-1 {home}/busy",
        "nvidia-smi": f"echo '{gpus}'",
    }.items():
        (binaries / name).write_text(f"#!/bin/bash\n{script}\n")
        (binaries / name).chmod(stat.S_IRWXU)
    subprocess.run(
        ["bash", "-c", document(PATH)["run"]],
        cwd=home,
        env={"PATH": os.environ["PATH"], "HEAD": head, "MODELS_DIR": document(PATH)["envs"]["MODELS_DIR"]} | TOKEN,
        check=True,
        capture_output=True,
        timeout=60,
    )
    return calls.read_text().splitlines()


HAPROXY = "RAY_SERVE_HAPROXY_BINARY_PATH"


def environment(home: Path) -> list[str]:
    """Return the environment that Ray is started in."""
    own = {
        HAPROXY: str(home / ".venv/bin/power-lever-haproxy"),
        "MODELS_DIR": "/mnt/models",
        "RAY_AUTH_MODE": "token",
        **TOKEN,
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "100",
    }
    return [f"{name}={value}" for name, value in (serve_env() | own).items()]


def test_a_node_without_the_token_starts_nothing(tmp_path: Path) -> None:
    # SkyPilot takes a secret without a value for one that its server may have, and starts the job without it.
    done = subprocess.run(
        ["bash", "-c", document(PATH)["run"]],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HEAD": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "launch with --secret RAY_AUTH_TOKEN" in done.stderr


def test_the_head_starts_ray_and_serves(tmp_path: Path) -> None:
    assert run_node(tmp_path, head="", busy_minutes=0) == [
        "ray start --head --port=6379 --dashboard-agent-listen-port=52366",
        *environment(tmp_path),
        "power-lever serve serve_config.yaml",
    ]


@pytest.mark.parametrize(
    ("gpus", "resources"),
    [
        ("GPU 0: NVIDIA L4 (UUID: GPU-0)", ""),
        ("GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-0)", ' --resources={"accelerator_type:A100-80G":1}'),
    ],
)
def test_a_gpu_node_joins_and_drains_after_ten_minutes_without_a_replica(
    gpus: str, resources: str, tmp_path: Path
) -> None:
    calls = run_node(tmp_path, head="10.0.0.10", busy_minutes=3, gpus=gpus)
    assert [line for line in calls if line != "minute"] == [
        f"ray start --address=10.0.0.10:6379 --dashboard-agent-listen-port=52366 --block{resources}",
        *environment(tmp_path),
        "drained",
    ]
    assert calls.count("minute") == 3 + 10
