"""A Ray cluster whose GPU nodes are processes on this machine, scaled by Ray's own (v2) autoscaler.

Nodes only claim to have a GPU. `ray start` runs in the foreground, so that the head, the autoscaler and its nodes all
descend from one process, which ends them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from bench.load.client import HOST
from bench.load.processes import stop_orphans, stop_tree
from bench.load.servers import app_config, free_port, get_status, ray_environment
from bench.reporting.report import REPOSITORY
from tests.support.api import PATIENCE_S

HEAD_ID: Final = "f" * 51 + "00000"
HEAD_TYPE: Final = "ray.head.default"
"""The provider's name of the head."""
IDLE_MINUTES: Final = 0.15
"""Idle time after which the autoscaler removes a node."""
NODE_TYPES: Final[Mapping[str, tuple[str, int, int]]] = {
    "l4": ("L4", 1, 2),
    "a10g": ("A10G", 1, 3),
    "a100": ("A100-80G", 1, 2),
    "h100": ("H100", 2, 2),
}
"""By the autoscaler's name: accelerator type, GPUs per node, most nodes."""
_EMPTY: Final = (
    "cluster_synced_files",
    "rsync_exclude",
    "rsync_filter",
    "initialization_commands",
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "head_start_ray_commands",
    "worker_start_ray_commands",
)
_BIN: Final = Path(sys.executable).parent


def autoscaler_config(gcs_port: int) -> dict[str, Any]:
    """Return the content of the file for `ray start --autoscaling-config`."""
    empty: dict[str, Any] = {key: [] for key in _EMPTY}  # Ray reads these keys without a default
    return empty | {
        "cluster_name": "gpu-nodes",
        "max_workers": 8,
        "idle_timeout_minutes": IDLE_MINUTES,
        "upscaling_speed": 1.0,
        "provider": {
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "head_node_id": HEAD_ID,
            "gcs_address": f"{HOST}:{gcs_port}",
            "launch_multiple": True,
            "use_internal_ips": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "foreground_node_launch": True,
        },
        "auth": {},
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        "head_node_type": HEAD_TYPE,
        "available_node_types": {
            HEAD_TYPE: {"resources": {"CPU": 16}, "node_config": {}, "max_workers": 0},
            **{
                name: {
                    "resources": {"CPU": 4, "GPU": gpus, f"accelerator_type:{gpu}": 1},
                    "labels": {"ray.io/accelerator-type": gpu},  # Ray finds it on a real node
                    "node_config": {},
                    "min_workers": 0,
                    "max_workers": most,
                }
                for name, (gpu, gpus, most) in NODE_TYPES.items()
            },
        },
    }


@dataclass
class GpuCluster:
    """A running cluster with the application deployed on it."""

    scratch: Path
    env: Mapping[str, str]
    gcs_port: int
    dashboard_port: int
    http_port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        """URL of the application."""
        return f"http://{HOST}:{self.http_port}"

    def ray(self, *arguments: str, timeout_s: float = PATIENCE_S) -> str:
        """Run one of Ray's commands against this cluster; return its output."""
        done = subprocess.run(
            [str(_BIN / arguments[0]), *arguments[1:]],
            env={**os.environ, **self.env, "RAY_ADDRESS": f"{HOST}:{self.gcs_port}"},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def deploy(self, variants: Mapping[str, Mapping[str, Any]]) -> None:
        """Run `serve deploy`; return when the cluster has accepted the config."""
        shipped = yaml.safe_load((REPOSITORY / "serve_config.yaml").read_text(encoding="utf-8"))
        path = self.scratch / "serve_config.yaml"
        config = app_config(shipped, self.http_port, variants, {})
        config["proxy_location"] = "HeadOnly"  # the nodes share one machine and its ports
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        self.ray("serve", "deploy", "--address", f"http://{HOST}:{self.dashboard_port}", str(path))

    def applications(self) -> dict[str, str]:
        """Return the status of each application, by name."""
        return {name: str(application["status"]) for name, application in self._serve().items()}

    def replica_states(self, application: str, deployment: str) -> set[str]:
        """Return Serve's states of a deployment's replicas; none while Serve reads another version's config."""
        shown = self._serve()[application]["deployments"].get(deployment, {"replicas": []})
        return {str(replica["state"]) for replica in shown["replicas"]}

    def _serve(self) -> dict[str, Any]:
        found: dict[str, Any] = self._get("/api/serve/applications/")["applications"]
        return found

    def _get(self, path: str) -> Any:
        """Return what the dashboard says, as Ray's commands do, each of which takes seconds of CPU time to start."""
        response = httpx.get(f"http://{HOST}:{self.dashboard_port}{path}", timeout=PATIENCE_S)
        return response.raise_for_status().json()

    def drain(self, node_id: str, deadline_s: int) -> None:
        """Reclaim a node with notice, as a cloud does with a spot instance."""
        self.ray(
            *("ray", "drain-node", "--address", f"{HOST}:{self.gcs_port}", "--node-id", node_id),
            *("--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "taken away by a test"),
            *("--deadline-remaining-seconds", str(deadline_s)),
        )

    def gpu_nodes(self) -> dict[str, str]:
        """Return the accelerator type of each live GPU node, by id."""
        listed = self._get("/api/v0/nodes?detail=0&limit=100")["data"]["result"]["result"]
        return {
            node["node_id"]: name.removeprefix("accelerator_type:")
            for node in listed
            for name in node["resources_total"]
            if node["state"] == "ALIVE" and name.startswith("accelerator_type:")
        }


@contextmanager
def gpu_cluster(
    variants: Mapping[str, Mapping[str, Any]],
    engine_env: Mapping[str, str] | None = None,
    timeout_s: float = 2 * PATIENCE_S,
) -> Iterator[GpuCluster]:
    """Start a cluster without GPU nodes, and deploy the application on it.

    Args:
        variants: as for `bench.load.servers.application`.
        engine_env: environment of every node.
        timeout_s: until the application runs.
    """
    scratch = Path(tempfile.mkdtemp(prefix="plg-"))
    gcs_port, dashboard_port = free_port(), free_port()
    config = scratch / "cluster.yaml"
    config.write_text(yaml.safe_dump(autoscaler_config(gcs_port)), encoding="utf-8")
    env = ray_environment(scratch) | {
        **(engine_env or {}),
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "1",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
        "PYTHONPATH": str(REPOSITORY),
        "RAY_AUTH_MODE": "disabled",  # otherwise the dashboard requires a token, and leaves one in the home folder
    }
    log = (scratch / "ray-start.log").open("wb")
    process = subprocess.Popen(
        [
            *(str(_BIN / "ray"), "start", "--head", "--block", "--node-ip-address", HOST, "--port", str(gcs_port)),
            *("--num-cpus", "16", "--num-gpus", "0", "--autoscaling-config", str(config)),
            *("--dashboard-host", HOST, "--dashboard-port", str(dashboard_port)),
            *("--dashboard-agent-listen-port", str(free_port()), "--ray-client-server-port", str(free_port())),
            *("--temp-dir", str(scratch)),
        ],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    cluster = GpuCluster(scratch, env, gcs_port, dashboard_port, free_port(), process)
    try:
        _wait(lambda: get_status(dashboard_port, "/api/version") == 200, PATIENCE_S, cluster)
        cluster.deploy(variants)
        _wait(lambda: set(cluster.applications().values()) == {"RUNNING"}, timeout_s, cluster)
        yield cluster
    finally:
        stop_tree(process.pid, grace_s=1)  # nobody waits for this cluster
        process.wait()
        stop_orphans(scratch)
        log.close()
        shutil.rmtree(scratch, ignore_errors=True)


def _wait(holds: Callable[[], bool], timeout_s: float, cluster: GpuCluster) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        log = (cluster.scratch / "ray-start.log").read_text(encoding="utf-8", errors="replace")[-3000:]
        assert cluster.process.poll() is None, f"ray start ended:\n{log}"
        assert time.monotonic() < deadline, f"not ready after {timeout_s:g} s:\n{log}"
        time.sleep(0.5)
