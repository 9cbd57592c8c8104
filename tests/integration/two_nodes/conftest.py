"""A cluster of two nodes, each in a network namespace of its own, as two pods: a head that manages, and a worker."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import pytest
import yaml

from bench.load.processes import stop_orphans, stop_tree
from bench.load.servers import app_config, ray_environment
from bench.reporting.report import REPOSITORY
from tests.support.api import PATIENCE_S

HEAD, WORKER = "10.213.77.1", "10.213.77.2"
HTTP_PORT: Final = 8000
_GCS_PORT: Final = 6379
_BIN: Final = Path(sys.executable).parent


@dataclass
class Node:
    """A node, and the way to run something on it."""

    namespace: str
    address: str
    env: dict[str, str]

    def start(self, *command: str, log: Path) -> subprocess.Popen[bytes]:
        with log.open("wb") as output:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, *command],
                env={**os.environ, **self.env},
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self, *command: str, timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["ip", "netns", "exec", self.namespace, *command],
            env={**os.environ, **self.env},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def curl(self, url: str, *arguments: str) -> tuple[int, str]:
        """HTTP status (0: nobody answers) and body, asked from this node."""
        done = self.run("curl", "--silent", "--max-time", "60", "--write-out", "\n%{http_code}", *arguments, url)
        body, _, status = done.stdout.rpartition("\n")
        return int(status or 0), body


@dataclass
class TwoNodes:
    """Both nodes, the application running on the worker."""

    head: Node
    worker: Node


@pytest.fixture(scope="package")
def two_nodes() -> Iterator[TwoNodes]:
    """The cluster; skips where namespaces cannot be made."""
    scratch = Path(tempfile.mkdtemp(prefix="pln-"))
    env = ray_environment(scratch) | {
        "RAY_AUTH_MODE": "disabled",
        "PYTHONPATH": str(REPOSITORY),
        # Each node has all ports for itself.
        "RAY_SERVE_HAPROXY_STATS_PORT": "8404",
        "RAY_SERVE_HAPROXY_METRICS_PORT": "9101",
    }
    head = Node(f"plh{os.getpid()}", HEAD, env)
    worker = Node(f"plw{os.getpid()}", WORKER, env)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        stack.callback(stop_orphans, scratch)
        _connect(head, worker, stack)
        for node, role in (
            (head, ("--head", f"--port={_GCS_PORT}", "--num-cpus=0", "--dashboard-host=127.0.0.1")),
            (worker, (f"--address={HEAD}:{_GCS_PORT}", "--num-cpus=4")),
        ):
            options = (f"--node-ip-address={node.address}", f"--temp-dir={scratch}", "--block")
            log = scratch / f"{node.namespace}.log"
            process = node.start(str(_BIN / "ray"), "start", *role, *options, log=log)
            stack.callback(process.wait)
            stack.callback(stop_tree, process.pid, grace_s=1)
            _wait(partial(_is_alive, head, node.address), PATIENCE_S, log)
        _deploy(head, scratch)
        _wait(partial(_is_ready, worker), PATIENCE_S, scratch / f"{worker.namespace}.log")
        yield TwoNodes(head, worker)


def _connect(head: Node, worker: Node, stack: ExitStack) -> None:
    """A namespace for each node, and a cable between them."""
    commands = [["ip", "netns", "add", node.namespace] for node in (head, worker)]
    cable = ["ip", "link", "add", "veth0", "netns", head.namespace, "type", "veth"]
    commands.append([*cable, "peer", "veth0", "netns", worker.namespace])
    for node in (head, worker):
        stack.callback(subprocess.run, ["ip", "netns", "del", node.namespace], capture_output=True, check=False)
        inside = ["ip", "-n", node.namespace]
        commands.append([*inside, "addr", "add", f"{node.address}/24", "dev", "veth0"])
        commands += [[*inside, "link", "set", device, "up"] for device in ("lo", "veth0")]
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            _skip("needs the command `ip`")
        if done.returncode:
            _skip(f"network namespaces cannot be made here: {' '.join(command)}: {done.stderr.strip()}")


def _skip(reason: str) -> NoReturn:
    """Skip these tests; in CI that is a failure, as nothing else tests two nodes."""
    if "CI" in os.environ:
        pytest.fail(reason)
    pytest.skip(reason)


def _deploy(head: Node, scratch: Path) -> None:
    """The shipped application with stub engines, reachable from outside the pod as in KubeRay's manifest."""
    shipped = yaml.safe_load((REPOSITORY / "serve_config.yaml").read_text(encoding="utf-8"))
    args = {"profile": "local", "inference_mode": "mock", "auth": {"allow_anonymous": True}}
    config = app_config(shipped, HTTP_PORT, {"/": args}, {})
    config["http_options"]["host"] = "0.0.0.0"
    path = scratch / "serve.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    done = head.run(str(_BIN / "serve"), "deploy", "--address", "http://127.0.0.1:8265", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


def _is_alive(head: Node, address: str) -> bool:
    dashboard = head.curl("http://127.0.0.1:8265/api/v0/nodes?detail=0")[1]
    return (
        any(
            node["node_ip"] == address and node["state"] == "ALIVE"
            for node in json.loads(dashboard)["data"]["result"]["result"]
        )
        if dashboard.startswith("{")
        else False
    )


def _is_ready(worker: Node) -> bool:
    """A tier is warm, and the worker's HAProxy has seen that its servers are up."""
    return all(worker.curl(f"http://{WORKER}:{HTTP_PORT}{path}")[0] == 200 for path in ("/readyz", "/-/healthz"))


def _wait(holds: Callable[[], bool], timeout_s: float, log: Path) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
        time.sleep(0.5)
