"""What a server holds while nobody asks it anything: memory, file descriptors, and requests that never ended."""

from __future__ import annotations

import contextlib
import time
import urllib.request
from dataclasses import dataclass
from typing import Final

import psutil
from prometheus_client.parser import text_string_to_metric_families
from psutil import Process

from bench.load.client import HOST
from bench.load.processes import command_of, pss_bytes
from bench.load.servers import Server, get_json, replica_trees
from bench.reporting.report import Value
from router.registry import TIER_NAMES

_OPEN: Final = "power_lever_open_requests"
_QUIET_WITHIN_S: Final = 60.0
"""A request that is open so long after its client has gone never ends, s. That is noticed within a second."""
_IDLE_S: Final = 7.0
"""HAProxy closes its idle connections to the ingress after 5 s."""
_MB: Final = 1e6


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the server held at one moment."""

    requests: int
    """Requests sent until then."""
    open_requests: int
    """At the ingress."""
    engine_requests: int
    """In the engines, running and waiting."""
    memory_mb: dict[str, float]
    """Proportional resident memory by group of processes, MB."""
    fds: dict[str, int]
    """Open file descriptors by group of processes."""

    def row(self) -> dict[str, Value]:
        """Return a table's row."""
        about: dict[str, Value] = {"after requests": self.requests, "open": self.open_requests + self.engine_requests}
        memory = {f"{name}, MB": round(used, 1) for name, used in self.memory_mb.items()}
        return about | memory | {f"{name}, fds": count for name, count in self.fds.items()}


def footprint(server: Server, requests: int) -> Footprint:
    """Wait until the server is quiet, and return what it holds.

    Args:
        server: it runs, and nobody else asks it anything.
        requests: that it was sent until now.
    """
    until_s = time.monotonic() + _QUIET_WITHIN_S
    while sum(_open(server)) and time.monotonic() < until_s:
        time.sleep(0.5)
    time.sleep(_IDLE_S)
    groups = _groups(server)
    return Footprint(
        requests,
        *_open(server),
        {name: pss_bytes(processes) / _MB for name, processes in groups.items()},
        {name: sum(_fds(process) for process in processes) for name, processes in groups.items()},
    )


def _open(server: Server) -> tuple[int, int]:
    """Return how many requests the ingress and the engines have."""
    with urllib.request.urlopen(f"http://{HOST}:{server.port}/metrics", timeout=30) as response:
        families = text_string_to_metric_families(response.read().decode())
        at_ingress = sum(sample.value for family in families for sample in family.samples if sample.name == _OPEN)
    tiers = get_json(server.port, "/api/tiers")["tiers"]
    return int(at_ingress), sum(tier["requests"]["running"] + tier["requests"]["waiting"] for tier in tiers)


def _groups(server: Server) -> dict[str, list[Process]]:
    processes = server.processes()
    trees = replica_trees(processes, ("ingress", "pool", *TIER_NAMES))
    return {
        "ingress": trees.get("ingress", []),
        "engines": [process for name in TIER_NAMES for process in trees.get(name, [])],
        "HAProxy": [process for process in processes if "/bin/haproxy " in command_of(process)],
        "pool": trees.get("pool", []),
    }


def _fds(process: Process) -> int:
    with contextlib.suppress(psutil.Error):
        return int(process.num_fds())
    return 0
