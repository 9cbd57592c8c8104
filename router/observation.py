"""An immutable snapshot of the cluster, as the router sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from router.difficulty.categories import Category
from router.registry import DraftsChoice, TierName
from router.runs.summary import NO_RUNS, RunSummary

Advice = Literal["no_drafts"]
"""`no_drafts`: start the entry without drafts, as no number of draft tokens pays on it."""


class Learned(NamedTuple):
    """What the speculation controller of an engine has learned, for people to see."""

    tau: Mapping[str, float] = MappingProxyType({})
    """By category of prompt: the acceptance rate (0-1) below which drafts do not pay on this engine at this load; a
    category of which too little was seen is missing."""
    advice: Advice | None = None
    """What the operator should change; None: nothing."""
    reason: str | None = None
    """Why, in words; None: there is no advice."""


NOTHING_LEARNED: Final = Learned()


TierPhase = Literal["cold", "provisioning", "loading", "warm", "busy", "failed"]
"""No replica; one waits for a node; one loads its model; one runs; requests wait for it; it is useless to wait."""


class Watts(NamedTuple):
    """Power of a replica's GPUs, as their counters show it."""

    active: float | None = None
    """While it computes, W; None: not measured."""
    idle: float | None = None
    """While it does not, W; None: not measured."""
    reason: str | None = None
    """Why nothing is measured, in words; None: it is."""


@dataclass(frozen=True, slots=True)
class TierState:
    """The state of one tier at one moment."""

    running: int = 0
    starting: int = 0
    pending: int = 0
    reason: str | None = None
    """Why the tier is not fully up, in words; None: no reason is known."""
    active_entry: str | None = None
    """Name of the chain entry that the running replicas serve; None before one runs."""
    entry_failures: tuple[tuple[str, str], ...] = ()
    """(entry, reason) of the chain entries that could not be started."""
    failed: bool = False
    """Whether it is useless to wait for the tier: it gave up starting, or the cluster can never have a node for it."""
    engine_running: int = 0
    engine_waiting: int = 0
    """Requests that run and that wait in the engines."""
    queue_wait_ms: float = 0.0
    """Time from arrival to the first scheduling in the engine, mean of recent requests, ms."""
    cold_start_s: float = 60.0
    """Estimated time from no replica to the first token, s."""
    drafts: DraftsChoice | None = None
    """Who drafts for requests that do not choose; `ngram` as soon as one replica has switched to n-gram drafting. None:
    the entry makes no drafts, or none runs."""
    drafts_reason: str | None = None
    """Why that changed; None: it did not."""
    learned: Learned = NOTHING_LEARNED
    """By the tier's replicas: the mean of each tau, and the advice if all give one."""
    watts: Watts | None = None
    """Measured: the mean of the tier's replicas. None: no replica has a meter."""
    recent: RunSummary = NO_RUNS
    """Recent runs of all prompt categories together."""
    recent_by_category: Mapping[Category, RunSummary] = field(default_factory=lambda: MappingProxyType({}))
    """The same by category; a category without runs is missing."""

    @property
    def warm(self) -> bool:
        """Whether a replica can take a request at once."""
        return self.running > 0

    @property
    def phase(self) -> TierPhase:
        """What the tier is doing, in one word."""
        if self.failed:
            return "failed"
        if self.running:
            return "busy" if self.engine_waiting else "warm"
        if self.starting:
            return "loading"
        return "provisioning" if self.pending else "cold"


_COLD: Final = TierState()


@dataclass(frozen=True, slots=True)
class GpuSupply:
    """The cluster's GPUs of one accelerator type."""

    nodes: int = 0
    gpus: float = 0.0
    free: float = 0.0
    largest: float = 0.0
    """GPUs of the largest node."""


@dataclass(frozen=True, slots=True)
class ClusterGpus:
    """The GPUs of the cluster, and the changes that its autoscaler works on."""

    types: Mapping[str, GpuSupply] = field(default_factory=lambda: MappingProxyType({}))
    """By accelerator type; a type without a node is missing."""
    autoscaler: bool = False
    """Whether there is an autoscaler that reports what it does (Ray's v2)."""
    coming: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """By the autoscaler's node type: nodes that are being added."""
    failures: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """By the autoscaler's node type: why the last node could not be added."""
    infeasible: frozenset[str] = frozenset()
    """Accelerator types that replicas wait for and the autoscaler cannot add."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of every tier at one moment; a tier that is missing counts as cold."""

    tiers: Mapping[TierName, TierState] = field(default_factory=lambda: MappingProxyType({}))
    gpus: ClusterGpus | None = None
    """None: not known yet, or no tier runs on GPUs."""
    failing: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """By name of a background task that keeps failing: what is wrong, in words."""

    def tier(self, name: TierName) -> TierState:
        """Return the state of one tier."""
        return self.tiers.get(name, _COLD)
