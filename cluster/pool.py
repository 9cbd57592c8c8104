"""The GPU pool view: what every tier's replicas are doing right now, for the router and for `/api/tiers`.

Four sources: Serve's controller knows which replicas run, start or cannot be placed; Ray knows which GPUs there are
and which are coming (`gpu_nodes.py`); the engine replicas themselves report which chain entry they are loading or
serving, what failed before it, how many requests they hold and how long those waited; the ingress replicas report the
requests that finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Literal

from ray import serve
from ray.serve.schema import DeploymentStatusOverview

from cluster.cold_starts import ColdStarts
from cluster.gpu_nodes import placement, read_cluster_gpus
from cluster.open_requests import OpenRequests
from cluster.supervised import Supervised, troubles
from router.observation import ClusterGpus, Observation, TierState
from router.registry import Drafts, Profile, Tier, TierName
from router.runs.record import RunRecord, RunSettings
from router.runs.summary import NO_RUNS, RunReport, TierRuns

REPORT_EVERY_S = 1.0
"""Interval of the replicas' reports, s."""
_STALE_AFTER_S = 10.0
"""A running replica that has not reported for this long is gone (ten missed reports)."""
_LOOK_BUSY_S = 1.0
_LOOK_IDLE_S = 4.0
_LOOK_LEAST_S = 0.25
"""Intervals of the look at Serve's controller, s: while replicas start, while none does, and at least. The look costs
the controller and this process some 30 ms of CPU; a report that says something new brings the next look forward."""
_LOOK_WITHIN_S = 60.0
"""A look that takes longer hangs, s."""
NEWS_EVERY_S = 0.25
"""News is given out at once, and then not for so long, s. Every replica reports once a second and nearly every report
changes some figure: without this, a hundred replicas would wake every ingress a hundred times a second."""
_FADE_EVERY_S = 60.0
"""Without new runs, so often is it told that the old ones are older, s."""
NEWS_WITHIN_S = 10.0
"""Longest time that `news` is silent, s."""

_NO_RUNS_AT_ALL = TierRuns(NO_RUNS, MappingProxyType({}))
_NO_TIER_RUNS: Mapping[TierName, TierRuns] = MappingProxyType({})
_NOTHING_FAILS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """What one engine replica says of itself."""

    tier: TierName
    replica_id: str
    state: Literal["loading", "running", "failed"]
    entry: str | None
    failures: tuple[tuple[str, str], ...] = ()
    """(entry, reason) of the entries that this replica could not start."""
    engine_running: int = 0
    engine_waiting: int = 0
    queue_wait_ms: float = 0.0
    drafts: Drafts | None = None
    """Who drafts; None where the entry has no floor."""
    drafts_reason: str | None = None
    troubles: tuple[tuple[str, str], ...] = ()
    """(work, what is wrong) of what the replica does beside its requests."""


@dataclass(frozen=True, slots=True)
class DraftOrder:
    """Somebody said who shall draft in a tier."""

    drafts: Drafts
    given_s: float
    """Seconds since the epoch: the same order given again is another one."""


@dataclass(frozen=True, slots=True)
class TierDeployment:
    """What Serve's controller says of one tier."""

    running: int = 0
    starting: int = 0
    failed: bool = False
    """Serve has given the deployment up until the next deploy."""
    unhealthy: bool = False
    message: str = ""


def observe(
    profile: Profile,
    deployments: Mapping[TierName, TierDeployment],
    reports: Iterable[ReplicaReport],
    cold_starts_s: Mapping[TierName, float],
    gpus: ClusterGpus | None = None,
    runs: Mapping[TierName, TierRuns] = _NO_TIER_RUNS,
    failing: Mapping[str, str] = _NOTHING_FAILS,
) -> Observation:
    """All sources as one observation.

    Args:
        profile: the tiers.
        deployments: the controller's view.
        reports: the newest report of each replica; those of failed replicas too, as they hold the reasons.
        cold_starts_s: expected time from wanted to running, s, where it was learned.
        gpus: of the cluster; None: nobody has looked yet.
        runs: recent runs; tiers without one may be missing.
        failing: what is wrong with the pool's own work, by its name.
    """
    by_tier: dict[TierName, list[ReplicaReport]] = {name: [] for name in profile.tiers}
    wrong = dict(failing)
    for report in reports:
        by_tier[report.tier].append(report)
        wrong.update({f"{report.tier}: {work}": words for work, words in report.troubles})
    return Observation(
        MappingProxyType(
            {
                name: _tier_state(
                    tier,
                    gpus,
                    deployments.get(name, TierDeployment()),
                    by_tier[name],
                    cold_starts_s.get(name, tier.cold_start_s),
                    runs.get(name, _NO_RUNS_AT_ALL),
                )
                for name, tier in profile.tiers.items()
            }
        ),
        gpus,
        MappingProxyType(wrong),
    )


def _tier_state(
    tier: Tier,
    gpus: ClusterGpus | None,
    deployment: TierDeployment,
    reports: list[ReplicaReport],
    cold_start_s: float,
    runs: TierRuns,
) -> TierState:
    running = [report for report in reports if report.state == "running"]
    loading = [report for report in reports if report.state == "loading"]
    starting = min(len(loading), deployment.starting)
    # A replica that runs tells what failed before it; one that is loading may only begin to find out, and what the last
    # one that failed found is still the news.
    telling = running or [report for report in reports if report.failures]
    failures = telling[-1].failures if telling else ()
    drafting = [report for report in running if report.drafts is not None]
    told = next((report for report in drafting if report.drafts == "ngram"), drafting[-1] if drafting else None)
    place, hopeless = placement(tier, gpus)
    # Serve stops trying after some failed starts and calls that unhealthy, as it calls a replica that has just died;
    # only the first left a report of failure and has no replacement starting.
    gave_up = deployment.unhealthy and not deployment.starting and any(r.state == "failed" for r in reports)
    return TierState(
        running=deployment.running,
        starting=starting,
        pending=deployment.starting - starting,
        reason=_reason(deployment, loading, failures, gave_up, place, hopeless),
        active_entry=running[-1].entry if running and deployment.running else None,
        entry_failures=failures,
        failed=(deployment.failed or gave_up or hopeless) and deployment.running == 0,
        engine_running=sum(report.engine_running for report in running),
        engine_waiting=sum(report.engine_waiting for report in running),
        queue_wait_ms=sum(report.queue_wait_ms for report in running) / len(running) if running else 0.0,
        cold_start_s=cold_start_s,
        drafts=told.drafts if told else None,
        drafts_reason=told.drafts_reason if told else None,
        recent=runs.all,
        recent_by_category=runs.by_category,
    )


def _reason(
    deployment: TierDeployment,
    loading: list[ReplicaReport],
    failures: tuple[tuple[str, str], ...],
    gave_up: bool,
    place: str,
    hopeless: bool,
) -> str | None:
    words = [f"entry {entry} failed: {reason}" for entry, reason in failures]
    if loading and not deployment.running:
        words.append(f"loading entry {loading[-1].entry}")
    elif not deployment.running and (deployment.starting or hopeless):
        words.append(place)
    elif not (deployment.running or deployment.failed or gave_up):
        words.append("scaled to zero")
    if deployment.failed and deployment.message and not failures:
        words.append(deployment.message)
    return "; ".join(words) or None


class GpuPool:
    """A Serve deployment with one replica: takes reports, looks at the controller, gives out snapshots.

    Its state is a cache: after a restart the next reports and the next look fill it again; past runs are forgotten.
    """

    def __init__(self, profile: Profile, runs: RunSettings) -> None:
        self._profile = profile
        self._record = RunRecord(runs.half_life)
        self._runs = _NO_TIER_RUNS
        self._runs_told_s = -inf
        self._needs_gpus = any(tier.gpu is not None for tier in profile.tiers.values())
        # By replica, and of each tier the newest of a replica that failed.
        self._reports: dict[str, tuple[float, ReplicaReport]] = {}
        self._failed: dict[TierName, ReplicaReport] = {}
        self._deployments: dict[TierName, TierDeployment] = {}
        self._cold_starts = ColdStarts()
        self._orders: dict[TierName, DraftOrder] = {}
        self._app_name = serve.get_replica_context().app_name
        self._version = 0
        self._gpus: ClusterGpus | None = None
        self._observation = observe(profile, {}, (), {})
        self._changed = asyncio.Event()
        self._look_now = asyncio.Event()
        self._open = OpenRequests()
        self._to_tell = asyncio.Event()
        self._works = [
            Supervised("pool: look at the cluster", self._look_once, within_s=_LOOK_WITHIN_S),
            Supervised("pool: news", self._tell_once),
        ]
        for work in self._works:
            work.start()

    async def report(self, report: ReplicaReport) -> DraftOrder | None:
        """A replica's newest report replaces its last; what it gets back is the newest order to its tier."""
        _, before = self._reports.get(report.replica_id, (0.0, None))
        if report.state == "failed":
            self._reports.pop(report.replica_id, None)
            self._failed[report.tier] = report
            self._cold_starts.failed(report.tier)
        else:
            self._reports[report.replica_id] = (time.monotonic(), report)
        if report.state == "loading":
            self._cold_starts.loads(report.tier, report.replica_id, time.monotonic())
        if report.state == "running":
            # What failed before is now told by the report of the replica that runs.
            self._failed.pop(report.tier, None)
        if before is None or (before.state, before.entry) != (report.state, report.entry):
            self._look_now.set()
        self._to_tell.set()
        return self._orders.get(report.tier)

    async def report_runs(self, reports: Sequence[RunReport]) -> None:
        """Requests that finished at an ingress replica since its last report."""
        now_s = time.monotonic()
        for report in reports:
            self._record.add(report, now_s)
        self._tell_runs(now_s)
        self._to_tell.set()

    async def order_drafts(self, tier: TierName, drafts: Drafts) -> None:
        """Have all replicas of a tier, also those to come, use these drafts; they hear it with their next report."""
        self._orders[tier] = DraftOrder(drafts, time.time())

    async def news(self, seen: int) -> tuple[int, Observation]:
        """The observation and its version, as soon as it is newer than `seen`, or after some seconds without news."""
        if seen == self._version:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(NEWS_WITHIN_S):
                    await self._changed.wait()
        return self._version, self._observation

    async def close(self) -> float:
        """The application is being stopped: have the ingress take nothing new.

        Returns:
            How long what is open may take, s.
        """
        self._open.close()
        return max(tier.drain_s for tier in self._profile.tiers.values())

    async def closed(self) -> bool:
        """Whether `close` was called: an answer as soon as it is, or after some seconds."""
        return await self._open.closed(NEWS_WITHIN_S)

    async def report_open(self, replica_id: str, count: int) -> None:
        """An ingress replica has closed its gate and holds so many requests."""
        self._open.report(replica_id, count)

    async def open_requests(self) -> dict[str, int]:
        """How many each ingress replica holds that has closed its gate."""
        return self._open.counts()

    async def check_health(self) -> None:
        """Unhealthy when the pool's own work has failed for so long that starting it again does not help."""
        for work in self._works:
            work.raise_if_hopeless()

    async def _look_once(self) -> None:
        """One look at the controller and the GPUs, and the wait until the next."""
        self._look_now.clear()
        status = await asyncio.to_thread(serve.status)
        if self._needs_gpus:
            self._gpus = await asyncio.to_thread(read_cluster_gpus)
        application = status.applications.get(self._app_name)
        if application is not None:
            self._look(application.deployments)
        self._to_tell.set()
        await asyncio.sleep(_LOOK_LEAST_S)
        busy = any(deployment.starting for deployment in self._deployments.values())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout((_LOOK_BUSY_S if busy else _LOOK_IDLE_S) - _LOOK_LEAST_S):
                await self._look_now.wait()

    async def _tell_once(self) -> None:
        """Give out what is new, and then nothing for a while."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_IDLE_S):  # what fails is news too, and nobody tells it
                await self._to_tell.wait()
        self._to_tell.clear()
        self._publish()
        await asyncio.sleep(NEWS_EVERY_S)

    def _look(self, deployments: Mapping[str, DeploymentStatusOverview]) -> None:
        now_s = time.monotonic()
        for name, tier in self._profile.tiers.items():
            if name in deployments:
                self._deployments[name] = seen = deployment_state(deployments[name])
                self._cold_starts.look(
                    name,
                    running=seen.running,
                    starting=seen.starting,
                    possible=not placement(tier, self._gpus)[1],
                    expected_s=tier.cold_start_s,
                    now_s=now_s,
                )
        for key, (seen_s, report) in list(self._reports.items()):
            # A loading replica is silent while its engine starts.
            starting = self._deployments.get(report.tier, TierDeployment()).starting
            silent = now_s - seen_s > _STALE_AFTER_S
            if silent and (report.state == "running" or not starting):
                del self._reports[key]
        if now_s - self._runs_told_s > _FADE_EVERY_S:
            self._tell_runs(now_s)

    def _tell_runs(self, now_s: float) -> None:
        self._runs, self._runs_told_s = self._record.summaries(now_s), now_s

    def _publish(self) -> None:
        """Give out the observation if it says something new."""
        reports = [*self._failed.values(), *(report for _, report in self._reports.values())]
        learned_s = self._cold_starts.learned_s
        observation = observe(
            self._profile, self._deployments, reports, learned_s, self._gpus, self._runs, troubles(self._works)
        )
        if observation != self._observation:
            self._version, self._observation = self._version + 1, observation
            # One event a version: nobody holds a lock while waiting, so a cancelled waiter leaves nothing behind.
            self._changed.set()
            self._changed = asyncio.Event()


def deployment_state(overview: DeploymentStatusOverview) -> TierDeployment:
    """Serve's status of a deployment in our terms."""
    states = {str(getattr(state, "value", state)): count for state, count in overview.replica_states.items()}
    running = states.get("RUNNING", 0) + states.get("PENDING_MIGRATION", 0)  # the latter still serve
    status = str(getattr(overview.status, "value", overview.status))
    return TierDeployment(
        running=running,
        starting=states.get("STARTING", 0) + states.get("RECOVERING", 0) + states.get("UPDATING", 0),
        failed=status == "DEPLOY_FAILED" and not running,
        unhealthy=status == "UNHEALTHY",
        message=overview.message,
    )
