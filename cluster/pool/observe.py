"""Join everything that is known of the tiers into one observation. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ray.serve.schema import DeploymentStatusOverview

from cluster.pool.gpus import placement
from cluster.pool.messages import ReplicaReport
from router.observation import ClusterGpus, Learned, Observation, TierState, Watts
from router.registry import Profile, Tier, TierName
from router.runs.summary import NO_RUNS, TierRuns

_NO_RUNS_AT_ALL = TierRuns(NO_RUNS, MappingProxyType({}))
NO_TIER_RUNS: Mapping[TierName, TierRuns] = MappingProxyType({})
_NOTHING_FAILS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TierDeployment:
    """State of one tier's deployment, by Serve's controller."""

    running: int = 0
    starting: int = 0
    failed: bool = False
    """Serve has given the deployment up until the next deploy."""
    unhealthy: bool = False
    message: str = ""


def tier_deployment(overview: DeploymentStatusOverview) -> TierDeployment:
    """Return Serve's status of a deployment as a `TierDeployment`."""
    states = {_word(state): count for state, count in overview.replica_states.items()}
    running = states.get("RUNNING", 0) + states.get("PENDING_MIGRATION", 0)  # the latter still serve
    status = _word(overview.status)
    # Where a replica dies while its deployment is updated, as it also is after a restart of the controller, Serve says
    # that the deploy has failed, and starts another replica.
    gave_up = status == "DEPLOY_FAILED" and _word(overview.status_trigger) != "HEALTH_CHECK_FAILED"
    return TierDeployment(
        running=running,
        starting=states.get("STARTING", 0) + states.get("RECOVERING", 0) + states.get("UPDATING", 0),
        failed=gave_up and not running,
        unhealthy=status == "UNHEALTHY",
        message=overview.message,
    )


def _word(state: object) -> str:
    """Return a state that is one of Serve's enumeration, or already the word, as the controller answers in JSON."""
    return str(getattr(state, "value", state))


def observe(
    profile: Profile,
    deployments: Mapping[TierName, TierDeployment],
    reports: Iterable[ReplicaReport],
    cold_starts_s: Mapping[TierName, float],
    gpus: ClusterGpus | None = None,
    runs: Mapping[TierName, TierRuns] = NO_TIER_RUNS,
    failing: Mapping[str, str] = _NOTHING_FAILS,
) -> Observation:
    """Return all sources as one observation.

    Args:
        profile: the tiers.
        deployments: the controller's view.
        reports: the newest report of each replica. Failed replicas count too: their reports hold the reasons.
        cold_starts_s: expected time from requested to running, s, of the tiers that have measured one.
        gpus: of the cluster; None before the first refresh.
        runs: recent runs; tiers without one may be missing.
        failing: what is wrong with the pool's own background tasks, by task.
    """
    by_tier: dict[TierName, list[ReplicaReport]] = {name: [] for name in profile.tiers}
    troubles = dict(failing)
    for report in reports:
        by_tier[report.tier].append(report)
        troubles.update({f"{report.tier}: {task}": trouble for task, trouble in report.troubles})
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
        MappingProxyType(troubles),
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
    # One that runs may say so before the controller does: for others it still loads.
    unseen = running[deployment.running :][: deployment.starting]
    loading = [*(report for report in reports if report.state == "loading"), *unseen]
    starting = min(len(loading), deployment.starting)
    # A running replica reports what failed before it. A loading one may not have come that far, so the failures of the
    # last failed one still count.
    with_failures = running or [report for report in reports if report.failures]
    failures = with_failures[-1].failures if with_failures else ()
    drafting = [report for report in running if report.drafts is not None]
    # The tier shows n-gram drafting as soon as one replica has switched to it.
    shown = next((report for report in drafting if report.drafts == "ngram"), drafting[-1] if drafting else None)
    place, hopeless = placement(tier, gpus)
    # After some failed starts Serve stops trying and calls the deployment unhealthy. It says the same when a replica
    # has just died, but then no replica has reported a failed start, and a replacement is starting.
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
        drafts=shown.drafts if shown else None,
        drafts_reason=shown.drafts_reason if shown else None,
        learned=_together([report.learned for report in running]),
        watts=_mean_watts([report.watts for report in running if report.watts is not None]),
        recent=runs.all,
        recent_by_category=runs.by_category,
    )


def _mean_watts(measured: Sequence[Watts]) -> Watts | None:
    """Return the mean of those that measure; the last one's reason if none does. None: nobody has a meter."""
    active = [watts.active for watts in measured if watts.active is not None]
    idle = [watts.idle for watts in measured if watts.idle is not None]
    if not active:
        return measured[-1] if measured else None
    return Watts(sum(active) / len(active), sum(idle) / len(idle) if idle else None)


def _together(learned: Sequence[Learned]) -> Learned:
    """Return the mean of each tau, and the advice if every replica gives it."""
    taus: dict[str, list[float]] = {}
    for each in learned:
        for category, tau in each.tau.items():
            taus.setdefault(category, []).append(tau)
    means = {category: sum(values) / len(values) for category, values in sorted(taus.items())}
    if learned and all(each.advice for each in learned):
        return Learned(means, learned[-1].advice, learned[-1].reason)
    return Learned(means)


def _reason(
    deployment: TierDeployment,
    loading: list[ReplicaReport],
    failures: tuple[tuple[str, str], ...],
    gave_up: bool,
    place: str,
    hopeless: bool,
) -> str | None:
    reasons = [f"entry {entry} failed: {reason}" for entry, reason in failures]
    if loading and not deployment.running:
        reasons.append(f"loading entry {loading[-1].entry}")
    elif not deployment.running and (deployment.starting or hopeless):
        reasons.append(place)
    elif not (deployment.running or deployment.failed or gave_up):
        reasons.append("scaled to zero")
    if deployment.failed and deployment.message and not failures:
        reasons.append(deployment.message)
    return "; ".join(reasons) or None
