"""The pool's Serve deployment: it takes reports, refreshes its view of the cluster and broadcasts observations."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from math import inf
from typing import Final

from ray import serve
from ray.serve.schema import DeploymentStatusOverview

from cluster.observability.desk import MetricsDesk
from cluster.observability.meter import LocalMeter, Meters, RayMeter
from cluster.observability.totals import MetricsReport, snapshot
from cluster.pool.allowances import Allowances, Grant, Statement
from cluster.pool.cold_starts import ColdStarts
from cluster.pool.decisions import Decisions, KeptDecision
from cluster.pool.drain import DrainState
from cluster.pool.gpus import LatelyInfeasible, placement, read_cluster_gpus
from cluster.pool.messages import LONG_POLL_S, DraftOrder, ReplicaReport
from cluster.pool.observe import NO_TIER_RUNS, TierDeployment, observe, tier_deployment
from cluster.pool.serve_status import read_deployments
from cluster.pool.tier_gauges import publish_tiers
from cluster.supervision import Supervised, troubles
from router.observation import ClusterGpus, Observation
from router.registry import DraftsChoice, Profile, TierName
from router.runs.history import RunRecord
from router.runs.summary import HandedOver, RunReport

_STALE_AFTER_S: Final = 10.0
"""A running replica that has missed ten reports is gone."""
_REFRESH_BUSY_S: Final = 1.0
_REFRESH_IDLE_S: Final = 4.0
_REFRESH_LEAST_S: Final = 0.25
"""Refresh intervals, s: while replicas start, while none does, and the shortest. A refresh costs the controller and
this process some 30 ms of CPU. A report of a new state brings the next refresh forward."""
_REFRESH_WITHIN_S: Final = 60.0
"""A refresh that takes longer hangs, s."""
BROADCAST_EVERY_S: Final = 0.25
"""Shortest time between two broadcasts, s. Nearly every report changes some figure: without this, a hundred replicas
that report once a second would wake every ingress a hundred times a second."""
_SUMMARIZE_EVERY_S: Final = 60.0
"""Without new runs, the summaries are renewed this often, as old runs lose weight, s."""


class GpuPool:
    """A Serve deployment with one replica.

    Its state is a cache: after a restart the next reports, statements and the next refresh fill it again. Past runs and
    decision records are forgotten.
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._record = RunRecord()
        self._decisions = Decisions()
        self._allowances = Allowances()
        self._runs = NO_TIER_RUNS
        self._summarized_s = -inf
        self._needs_gpus = any(tier.gpu is not None for tier in profile.tiers.values())
        self._reports: dict[str, tuple[float, ReplicaReport]] = {}
        """By replica: when it last reported, and what."""
        self._failed: dict[TierName, ReplicaReport] = {}
        """By tier: the newest report of a replica that failed to start."""
        self._deployments: dict[TierName, TierDeployment] = {}
        self._cold_starts = ColdStarts()
        self._orders: dict[TierName, DraftOrder] = {}
        self._app_name = serve.get_replica_context().app_name
        self._version = 0
        self._gpus: ClusterGpus | None = None
        self._infeasible = LatelyInfeasible()
        self._observation = observe(profile, {}, (), {})
        self._new_version = asyncio.Event()
        self._refresh_now = asyncio.Event()
        self._broadcast_now = asyncio.Event()
        self._drain = DrainState()
        local = LocalMeter("pool")
        self._meter = Meters((RayMeter("pool"), local))
        self._desk = MetricsDesk(lambda: snapshot(local.registry.collect()))
        self._tasks = [
            Supervised("pool: refresh", self._refresh_round, within_s=_REFRESH_WITHIN_S),
            Supervised("pool: broadcast", self._broadcast_round),
        ]
        for task in self._tasks:
            task.start()

    async def report(self, report: ReplicaReport) -> DraftOrder | None:
        """Take an engine replica's newest report; return the newest draft order to its tier."""
        _, before = self._reports.get(report.replica_id, (0.0, None))
        if report.state == "failed":
            self._reports.pop(report.replica_id, None)
            self._failed[report.tier] = report
            self._cold_starts.replica_failed(report.tier)
        else:
            self._reports[report.replica_id] = (time.monotonic(), report)
        if report.state == "loading":
            self._cold_starts.replica_loading(report.tier, report.replica_id, time.monotonic())
        if report.state == "running":
            # A running replica reports itself what failed before it.
            self._failed.pop(report.tier, None)
        if before is None or (before.state, before.entry) != (report.state, report.entry):
            self._refresh_now.set()
        self._broadcast_now.set()
        return self._orders.get(report.tier)

    async def report_runs(self, reports: Sequence[RunReport | HandedOver]) -> None:
        """Take the requests that finished at an ingress replica since its last report."""
        now_s = time.monotonic()
        for report in reports:
            self._record.add(report, now_s)
        self._summarize_runs(now_s)
        self._broadcast_now.set()

    async def lease(self, replica_id: str, number: int, statements: Sequence[Statement]) -> list[Grant]:
        """Take what an ingress replica says of limits of keys, and answer each; see `Allowances.lease`."""
        return self._allowances.lease(replica_id, number, statements, time.monotonic())

    async def keep_decisions(self, decisions: Sequence[KeptDecision]) -> None:
        """Keep the decision records of an ingress replica for an hour."""
        self._decisions.add(decisions, time.monotonic())

    async def decision(self, decision_id: str) -> bytes | None:
        """Return a decision record as it came; None: there is none of that id, or no longer."""
        return self._decisions.get(decision_id, time.monotonic())

    async def order_drafts(self, tier: TierName, drafts: DraftsChoice) -> None:
        """Have all replicas of a tier use these drafts. Each gets the order with its next report, new ones too."""
        self._orders[tier] = DraftOrder(drafts, time.time())

    async def wait_for_update(self, version: int) -> tuple[int, Observation]:
        """Return the newest version and its observation: once it is newer than `version`, or after `LONG_POLL_S`."""
        if version == self._version:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LONG_POLL_S):
                    await self._new_version.wait()
        return self._version, self._observation

    async def report_metrics(self, report: MetricsReport) -> int:
        """Take a replica's metrics; see `MetricsDesk.take`."""
        return await self._desk.take(report)

    async def report_last_metrics(self, report: MetricsReport) -> int:
        """Take the metrics of a replica that stops."""
        return self._desk.take_last(report)

    async def metrics(self) -> bytes:
        """Return the metrics of all replicas, as Prometheus reads them."""
        return await self._desk.answer()

    async def close(self) -> float:
        """Have the ingress take no new requests, as the application is stopping.

        Returns:
            How long the open requests may take, s.
        """
        self._drain.close()
        return max(tier.drain_s for tier in self._profile.tiers.values())

    async def closed(self) -> bool:
        """Return whether `close` was called: as soon as it is, or after `LONG_POLL_S`."""
        return await self._drain.closed(LONG_POLL_S)

    async def report_open(self, replica_id: str, count: int) -> None:
        """Take the number of open requests of an ingress replica that accepts no new ones."""
        self._drain.report(replica_id, count)

    async def open_requests(self) -> dict[str, int]:
        """Return the open requests of each ingress replica that accepts no new ones."""
        return self._drain.counts()

    async def check_health(self) -> None:
        """Raise if a background task has failed for so long that only a new process may help."""
        for task in self._tasks:
            task.raise_if_hopeless()

    async def _refresh_round(self) -> None:
        """Ask the controller and Ray once, then wait until the next refresh is due."""
        self._refresh_now.clear()
        deployments = await asyncio.to_thread(read_deployments, self._app_name)
        if self._needs_gpus:
            gpus = await asyncio.to_thread(read_cluster_gpus)
            self._gpus = self._infeasible.added_to(gpus, time.monotonic())
        self._refresh(deployments)
        self._broadcast_now.set()
        await asyncio.sleep(_REFRESH_LEAST_S)
        busy = any(deployment.starting for deployment in self._deployments.values())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout((_REFRESH_BUSY_S if busy else _REFRESH_IDLE_S) - _REFRESH_LEAST_S):
                await self._refresh_now.wait()

    async def _broadcast_round(self) -> None:
        """Publish what has changed, then pause."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REFRESH_IDLE_S):  # a failing task changes the observation without an event
                await self._broadcast_now.wait()
        self._broadcast_now.clear()
        self._publish()
        await asyncio.sleep(BROADCAST_EVERY_S)

    def _refresh(self, deployments: Mapping[str, DeploymentStatusOverview]) -> None:
        now_s = time.monotonic()
        for name, tier in self._profile.tiers.items():
            if name in deployments:
                self._deployments[name] = deployment = tier_deployment(deployments[name])
                self._cold_starts.refresh(
                    name,
                    running=deployment.running,
                    starting=deployment.starting,
                    possible=not placement(tier, self._gpus)[1],
                    expected_s=tier.cold_start_s,
                    now_s=now_s,
                )
        self._forget_silent_replicas(now_s)
        self._allowances.forget(now_s)
        if now_s - self._summarized_s > _SUMMARIZE_EVERY_S:
            self._summarize_runs(now_s)

    def _forget_silent_replicas(self, now_s: float) -> None:
        for replica_id, (reported_s, report) in list(self._reports.items()):
            # A loading replica is silent while its engine starts.
            starting = self._deployments.get(report.tier, TierDeployment()).starting
            silent = now_s - reported_s > _STALE_AFTER_S
            if silent and (report.state == "running" or not starting):
                del self._reports[replica_id]

    def _summarize_runs(self, now_s: float) -> None:
        self._runs, self._summarized_s = self._record.summaries(now_s), now_s

    def _publish(self) -> None:
        """Make a new version if the observation has changed."""
        reports = [*self._failed.values(), *(report for _, report in self._reports.values())]
        learned_s = self._cold_starts.learned_s
        observation = observe(
            self._profile, self._deployments, reports, learned_s, self._gpus, self._runs, troubles(self._tasks)
        )
        publish_tiers(self._meter, self._profile, observation)
        if observation != self._observation:
            self._version, self._observation = self._version + 1, observation
            # One event per version: a waiter holds no lock, so a cancelled one leaves nothing behind.
            self._new_version.set()
            self._new_version = asyncio.Event()
