"""A Ray cluster of several nodes on this machine: a head, which manages, and workers, on which the engines run."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
import yaml
from psutil import Process

from bench.load.client import HOST
from bench.load.processes import command_of, process_tree, stop_orphans, stop_tree
from bench.load.servers import ServerError, app_config, free_port, get_json, get_status, ray_environment
from bench.reporting.report import REPOSITORY

_START_S: Final = 1800.0
"""Longest wait for the cluster, and then for the application, s: three engines took 11 minutes on a busy machine."""
_BIN: Final = Path(sys.executable).parent
_HEAD_CPUS: Final = 1
"""Of Ray: the ingress and the pool fit, a replica that takes more does not."""
_STORE_BYTES: Final = 100_000_000


@dataclass
class Cluster:
    """A running cluster.

    Args:
        scratch: folder that is removed with it.
        env: of all its processes.
        cpus: Ray CPUs of each worker.
    """

    scratch: Path
    env: Mapping[str, str]
    cpus: int
    port: int = field(default_factory=free_port)
    """Where the application listens."""
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _gcs_port: int = field(default_factory=free_port)
    _dashboard_port: int = field(default_factory=free_port)
    _head: subprocess.Popen[bytes] | None = None

    def start(self, workers: int) -> None:
        """Start the head, then so many workers."""
        self._start_head()
        self._wait(partial(self._has, 1))
        for number in range(workers):
            self.add_worker()
            self._wait(partial(self._has, 2 + number))  # Ray's names of sockets are free for one start at a time

    def add_worker(self) -> None:
        """Start another worker, which joins within seconds."""
        node = self._start_node("--address", f"{HOST}:{self._gcs_port}", "--num-cpus", str(self.cpus))
        self.workers.append(node)

    def mend(self) -> None:
        """Start those nodes again that ended by themselves: Ray gives a node 30 s to start.

        Raises:
            ServerError: the head ended after it had started.
        """
        if self._head is not None and self._head.poll() is not None:
            if self.workers:
                raise ServerError(f"the head ended:\n{self._log()}")
            self._start_head()
        for worker in [worker for worker in self.workers if worker.poll() is not None]:
            self.forget(worker)
            self.add_worker()

    def deploy(self, shipped: Mapping[str, Any], arguments: Mapping[str, Any], **options: Any) -> None:
        """Run `serve deploy`, as an operator does; return when the cluster has accepted the config.

        Args:
            shipped: content of `serve_config.yaml`.
            arguments: to merge over the application's.
            options: fields of the application beside `args`, such as `deployments`.
        """
        config = app_config(shipped, self.port, {"/": arguments}, {})
        config["proxy_location"] = "HeadOnly"  # the nodes share one machine and its ports
        config["applications"][0] |= options
        path = self.scratch / "serve_config.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        command = [str(_BIN / "serve"), "deploy", "--address", f"http://{HOST}:{self._dashboard_port}", str(path)]
        env = {**os.environ, **self.env}
        done = subprocess.run(command, env=env, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServerError(f"serve deploy failed:\n{done.stdout}\n{done.stderr}")

    def wait_ready(self) -> None:
        """Wait until the application answers that it is ready."""
        self._wait(lambda: get_status(self.port, "/readyz") == 200)

    def processes(self) -> list[Process]:
        """Return all processes of its nodes."""
        nodes = [node for node in (self._head, *self.workers) if node is not None]
        return [process for node in nodes for process in process_tree(node.pid)]

    @property
    def logs(self) -> Path:
        """The folder of Ray's logs, of all nodes."""
        return self.scratch / "session_latest" / "logs"

    def keep_logs(self) -> Path:
        """Copy the logs, and return the folder, which outlives the cluster."""
        kept = Path(tempfile.mkdtemp(prefix="power-lever-logs-"))
        return Path(shutil.copytree(self.logs, kept, dirs_exist_ok=True))

    def dump_stacks(self) -> None:
        """Write among the logs what the replicas and engines do now, as far as their stacks can be read."""
        folder = self.logs / f"stacks-{time.strftime('%H%M%S')}"
        folder.mkdir(exist_ok=True)
        for process in self.processes():
            title = command_of(process)
            if "ray::ServeReplica" in title or "EngineCore" in title:
                command = [str(_BIN / "py-spy"), "dump", "--pid", str(process.pid)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                (folder / f"{process.pid}.txt").write_text(done.stdout + done.stderr, encoding="utf-8")

    def forget(self, worker: subprocess.Popen[bytes]) -> None:
        """Take a worker that has ended off the list."""
        worker.wait()
        self.workers.remove(worker)

    def stop(self) -> None:
        """End all nodes and what is left of them."""
        tree = self.processes()
        for node in (*self.workers, self._head):
            if node is not None:
                stop_tree(node.pid, grace_s=1)
                node.wait()
        for process in tree:  # also those whose parents were killed
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        stop_orphans(self.scratch)
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _start_head(self) -> None:
        self._head = self._start_node(
            *("--head", "--port", str(self._gcs_port), "--num-cpus", str(_HEAD_CPUS)),
            *("--dashboard-host", HOST, "--dashboard-port", str(self._dashboard_port)),
            *("--ray-client-server-port", str(free_port()), "--temp-dir", str(self.scratch)),
        )

    def _log(self) -> str:
        """Return the end of what the nodes said."""
        return (self.scratch / "nodes.log").read_text(encoding="utf-8", errors="replace")[-3000:]

    def _has(self, nodes: int) -> bool:
        return self._alive() >= nodes

    def _alive(self) -> int:
        """Return how many nodes Ray takes for alive."""
        try:
            listed = get_json(self._dashboard_port, "/api/v0/nodes?detail=0")["data"]["result"]["result"]
        except ServerError:
            return 0
        return sum(node["state"] == "ALIVE" for node in listed)

    def _start_node(self, *options: str) -> subprocess.Popen[bytes]:
        command = [
            *(str(_BIN / "ray"), "start", "--block", "--node-ip-address", HOST),
            *("--dashboard-agent-listen-port", str(free_port()), "--object-store-memory", str(_STORE_BYTES)),
            *("--min-worker-port", "0", "--max-worker-port", "0"),  # any: the nodes share one machine's
            *options,
        ]
        with (self.scratch / "nodes.log").open("ab") as log:
            return subprocess.Popen(
                command,
                env={**os.environ, **self.env},
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait(self, holds: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + _START_S
        while not holds():
            self.mend()
            if time.monotonic() > deadline_s:
                raise ServerError(f"not ready after {_START_S:g} s:\n{self._log()}")
            time.sleep(0.25)


@contextlib.contextmanager
def cluster(workers: int, cpus: int) -> Iterator[Cluster]:
    """Start a cluster without an application, and end it.

    Args:
        workers: nodes beside the head.
        cpus: Ray CPUs of each worker.
    """
    scratch = Path(tempfile.mkdtemp(prefix="plc-"))  # short: Ray's socket paths below it have a limit of 107 bytes
    env = ray_environment(scratch) | {
        "PYTHONPATH": str(REPOSITORY),
        "RAY_memory_monitor_refresh_ms": "0",  # Ray would kill replicas when other programs fill the machine's memory
        "RAY_AUTH_MODE": "disabled",  # otherwise the dashboard requires a token, and leaves one in the home folder
    }
    made = Cluster(scratch, env, cpus)
    try:
        made.start(workers)
        yield made
    finally:
        made.stop()
