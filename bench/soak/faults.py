"""What happens to the cluster while streams run."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import psutil
import yaml
from psutil import Process

from bench.load.nodes import Cluster
from bench.load.processes import command_of, is_alive, process_tree
from bench.load.servers import ServerError, get_json, replica_trees
from bench.reporting.report import REPOSITORY
from bench.soak.sockets import connections_to, shut_down, why_not
from cluster.profiles.reading import merge

TIER: Final = "eco"
REPLICAS: Final = 3
CPUS: Final = 2
"""Ray CPUs of a replica: two fit on a worker, and none on the head."""
WORKERS: Final = 2
SILENT_S: Final = 8.0
"""Longer than it takes to find that a replica is lost."""
_WITH_ALL: Final = frozenset({"node", "redeploy", "scale_in", "build"})
"""Faults that begin when all replicas run."""
_POLL_S: Final = 0.5
_GLANCE_S: Final = 0.05
"""A build takes seconds."""
_SETTLE_S: Final = 300.0
Json = dict[str, Any]
Some = TypeVar("Some")


class NotNowError(Exception):
    """What the fault was for has ended since `may` was asked."""


def arguments(*, stub: bool) -> Json:
    """Return the application's arguments."""
    tier = {
        "cpus": CPUS,
        "max_ongoing_requests": 32,
        "max_queued_requests": 64,
        "replicas": {"min": REPLICAS, "max": REPLICAS},
    }
    return {"profile": "local", "inference_mode": "mock" if stub else "real", "tiers": {TIER: tier}}


@dataclass(slots=True)
class Faults:
    """The faults of one run, by name.

    Args:
        cluster: with the application on it.
        stub: whether the engines are stubs, which have no process of their own.
        draw: random.
    """

    cluster: Cluster
    stub: bool
    draw: random.Random
    missing: Mapping[str, str] = field(init=False)
    """Kinds that cannot be had, and why."""
    _version: int = 0
    _shipped: Json = field(init=False)

    def __post_init__(self) -> None:
        missing = {"socket": why_not(), "engine": "a stub engine has no process of its own" if self.stub else None}
        self.missing = {kind: reason for kind, reason in missing.items() if reason is not None}
        self._shipped = yaml.safe_load((REPOSITORY / "serve_config.yaml").read_text(encoding="utf-8"))

    @property
    def kinds(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """What makes each kind of fault."""
        kinds = {
            "engine": self.engine,
            "replica": self.replica,
            "sigterm": self.sigterm,
            "silence": self.silence,
            "socket": self.socket,
            "node": self.node,
            "controller": self.controller,
            "redeploy": self.redeploy,
            "scale_in": self.scale_in,
            "build": self.build,
        }
        return {name: fault for name, fault in kinds.items() if name not in self.missing}

    async def engine(self) -> None:
        """SIGKILL an engine core: its replica ends with it."""
        replica = self._a_writer()
        _kill([child for child in _children(replica) if "EngineCore" in command_of(child)])

    async def replica(self) -> None:
        """SIGKILL a replica: its engine core ends by itself."""
        _kill([self._a_writer()])

    async def sigterm(self) -> None:
        """SIGTERM a replica."""
        self._a_writer().terminate()

    async def silence(self) -> None:
        """SIGSTOP a replica for a while: it is lost meanwhile, and then goes on writing to nobody."""
        replica = self._a_writer()
        _send(signal.SIGSTOP, [replica])
        await asyncio.sleep(SILENT_S)
        _send(signal.SIGCONT, [replica])

    async def socket(self) -> None:
        """Shut down the connections of a replica's streams to the ingress."""
        writers = self._writers()
        replica = self._one(sorted(writers, key=lambda writer: writer.pid))
        if not shut_down(replica, writers[replica]):
            raise NotNowError

    async def node(self) -> None:
        """Stop everything on a node, as if its network was gone, then kill it; another node comes."""
        node = self._one(self._nodes())
        tree = process_tree(node.pid)
        _send(signal.SIGSTOP, tree)
        await asyncio.sleep(SILENT_S)
        _kill(tree)
        self.cluster.forget(node)
        self.cluster.add_worker()

    async def controller(self) -> None:
        """SIGKILL Serve's controller, which Ray starts again."""
        _kill([each for each in self.cluster.processes() if command_of(each).startswith("ray::ServeController")][:1])

    async def redeploy(self) -> None:
        """Deploy another version: all replicas, the ingress's too, are replaced one after the other."""
        self._version += 1
        await self.deploy()

    async def scale_in(self) -> None:
        """Take a replica away, and bring it back when it has gone."""
        less = {"min_replicas": REPLICAS - 1, "max_replicas": REPLICAS - 1, "downscale_delay_s": 0}
        await self.deploy(deployments=[{"name": TIER, "autoscaling_config": less}])
        await self.wait_for(REPLICAS - 1)
        await self.deploy()

    async def build(self) -> None:
        """Deploy another version, and SIGKILL the controller while that is built: the new controller builds it."""
        before = self._builds()
        async with asyncio.timeout(_SETTLE_S), asyncio.TaskGroup() as group:
            group.create_task(self.redeploy())
            while self._builds() == before:  # noqa: ASYNC110 - no event says that it begins
                await asyncio.sleep(_GLANCE_S)
            await self.controller()

    async def deploy(self, **options: Any) -> None:
        """Deploy the application as it is now."""
        limits = {"limits": {"max_prompt_chars": 100_000 + self._version}}
        over = merge(arguments(stub=self.stub), limits)
        deadline_s = time.monotonic() + _SETTLE_S
        while True:
            try:
                await asyncio.to_thread(self.cluster.deploy, self._shipped, over, **options)
            except ServerError:
                if time.monotonic() > deadline_s:
                    raise
                await asyncio.sleep(_POLL_S)  # the controller restarts
            else:
                return

    async def wait_for(self, running: int) -> None:
        """Wait until so many replicas run, or for as long as that may take."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                while self.running() != running:  # noqa: ASYNC110 - Serve sends no event when it changes
                    await asyncio.sleep(_POLL_S)

    def running(self) -> int:
        """Return how many replicas of the tier run, 0 while nobody says."""
        try:
            tiers: list[Json] = get_json(self.cluster.port, "/api/tiers")["tiers"]
        except ServerError:
            return 0
        return int(next(tier["replicas"]["running"] for tier in tiers if tier["name"] == TIER))

    def may(self, kind: str) -> bool:
        """Return whether this is a moment for that fault: another replica can go on."""
        self.cluster.mend()
        if kind == "controller":
            return True
        if kind == "node" and not self._nodes():
            return False
        running, needed = self.running(), REPLICAS if kind in _WITH_ALL else 2
        return running >= needed and len(self._replicas()) >= needed and bool(self._writers())

    def _nodes(self) -> list[subprocess.Popen[bytes]]:
        """Return the workers on which a replica answers, and no ingress replica is: with that one its streams end."""
        writing = {process.pid for process in self._writers()}
        ingress = {process.pid for process in self._replicas("ingress")}
        trees = [(node, {each.pid for each in process_tree(node.pid)}) for node in self.cluster.workers]
        return [node for node, tree in trees if tree & writing and not tree & ingress]

    def _builds(self) -> int:
        """Return how many builds of a version have begun: each has a log."""
        return len(list(self.cluster.logs.glob("serve/controller_build_*.log")))

    def _a_writer(self) -> Process:
        return self._one(sorted(self._writers(), key=lambda writer: writer.pid))

    def _one(self, some: Sequence[Some]) -> Some:
        if not some:
            raise NotNowError
        return self.draw.choice(some)

    def _writers(self) -> dict[Process, list[int]]:
        """Return the replicas that answer now, each with its connections to the ingress."""
        writers: dict[Process, list[int]] = {}
        for ingress in self._replicas("ingress"):  # two during a redeploy
            for replica, connections in connections_to(ingress, self._replicas()).items():
                writers.setdefault(replica, []).extend(connections)
        return writers

    def _replicas(self, deployment: str = TIER) -> list[Process]:
        tree = replica_trees(self.cluster.processes(), (deployment,)).get(deployment, [])
        return [each for each in tree if is_alive(each) and command_of(each).startswith("ray::")]


def _children(process: Process) -> list[Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def _kill(processes: Sequence[Process]) -> None:
    _send(signal.SIGKILL, processes)


def _send(number: signal.Signals, processes: Sequence[Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
