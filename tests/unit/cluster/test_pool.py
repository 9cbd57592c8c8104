"""What Serve says and what the replicas report become one observation."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace

import pytest
from ray.serve._private.common import DeploymentStatus, DeploymentStatusTrigger, ReplicaState
from ray.serve.schema import DeploymentStatusOverview

from cluster.pool import NEWS_EVERY_S, GpuPool, ReplicaReport, TierDeployment, deployment_state, observe
from cluster.supervised import HOPELESS_AFTER_S
from router.observation import ClusterGpus, GpuSupply, Observation, TierState
from router.runs.record import RunSettings
from tests.support.runs import run
from tests.unit.router.profiles import small_profile

FAILURES = (("small-ngram", "no memory"),)


def eco(deployment: TierDeployment | None, *reports: ReplicaReport, measured_s: float | None = None) -> TierState:
    """The eco tier as observed."""
    deployments = {} if deployment is None else {"eco": deployment}
    cold_starts = {} if measured_s is None else {"eco": measured_s}
    return observe(small_profile(), deployments, reports, cold_starts).tier("eco")  # type: ignore[arg-type]


def running(entry: str = "small-ngram", replica: str = "a", **over: int) -> ReplicaReport:
    return ReplicaReport(
        "eco", replica, "running", entry, engine_running=over.get("busy", 0), engine_waiting=over.get("waiting", 0)
    )


def loading(
    entry: str = "small-ngram", failures: tuple[tuple[str, str], ...] = (), replica: str = "a"
) -> ReplicaReport:
    return ReplicaReport("eco", replica, "loading", entry, failures)


def test_every_tier_of_the_profile_is_observed_also_before_anything_is_known() -> None:
    observation = observe(small_profile(), {}, [], {})
    assert set(observation.tiers) == {"eco", "balanced", "performance", "ultra"}
    assert not any(state.warm for state in observation.tiers.values())


def test_an_idle_tier_is_scaled_to_zero_and_says_so() -> None:
    state = eco(TierDeployment())
    assert (state.running, state.starting, state.pending, state.failed) == (0, 0, 0, False)
    assert state.reason == "scaled to zero"


def test_a_running_replica_makes_a_tier_warm_and_tells_its_step_and_load() -> None:
    state = eco(TierDeployment(running=2), running(busy=3, waiting=1), running(replica="b", busy=4))
    assert state.warm
    assert (state.running, state.active_entry, state.reason) == (2, "small-ngram", None)
    assert (state.engine_running, state.engine_waiting) == (7, 1)


def test_a_replica_that_has_not_spoken_is_pending_and_one_that_loads_is_starting() -> None:
    state = eco(TierDeployment(starting=3), loading())
    assert (state.starting, state.pending) == (1, 2)
    assert not state.warm
    assert state.reason == "loading entry small-ngram"


def test_a_wanted_replica_without_a_place_is_told() -> None:
    state = eco(TierDeployment(starting=1))
    assert (state.starting, state.pending) == (0, 1)
    assert state.reason == "waiting for a replica to be placed"


def test_more_reports_of_loading_than_serve_knows_of_do_not_make_pending_negative() -> None:
    state = eco(TierDeployment(starting=1), loading(), loading(replica="b"))
    assert (state.starting, state.pending) == (1, 0)


def test_steps_that_failed_are_told_while_the_next_one_loads() -> None:
    state = eco(TierDeployment(starting=1), loading("small-alone", FAILURES))
    assert state.entry_failures == FAILURES
    assert state.reason == "entry small-ngram failed: no memory; loading entry small-alone"


def test_a_tier_that_fell_back_keeps_the_reason_while_it_runs() -> None:
    fallen = ReplicaReport("eco", "a", "running", "small-alone", FAILURES)
    state = eco(TierDeployment(running=1), fallen)
    assert (state.active_entry, state.entry_failures) == ("small-alone", FAILURES)
    assert state.reason == "entry small-ngram failed: no memory"


def test_a_tier_of_which_no_step_works_is_failed_with_all_the_reasons() -> None:
    failures = (*FAILURES, ("small-alone", "weights missing"))
    state = eco(TierDeployment(failed=True, message="3 retries"), ReplicaReport("eco", "a", "failed", None, failures))
    assert state.failed
    assert state.reason == "entry small-ngram failed: no memory; entry small-alone failed: weights missing"


FAILED = ReplicaReport("eco", "a", "failed", None, FAILURES)


def test_a_tier_that_serve_stopped_trying_and_calls_unhealthy_is_failed() -> None:
    state = eco(TierDeployment(unhealthy=True), FAILED)
    assert (state.failed, state.reason) == (True, "entry small-ngram failed: no memory")


def test_an_unhealthy_tier_that_is_being_started_again_has_not_given_up() -> None:
    assert not eco(TierDeployment(unhealthy=True, starting=1), FAILED).failed


def test_a_replica_that_died_after_it_ran_is_no_reason_to_give_up() -> None:
    state = eco(TierDeployment(unhealthy=True), running())
    assert (state.failed, state.reason) == (False, "scaled to zero")


def test_a_tier_that_failed_without_a_report_gives_serves_message() -> None:
    state = eco(TierDeployment(failed=True, message="the node has no such file"))
    assert (state.failed, state.reason) == (True, "the node has no such file")


def test_a_tier_with_a_running_replica_is_not_failed() -> None:
    assert not eco(TierDeployment(running=1, failed=True), running()).failed


def test_a_report_that_outlived_its_replica_does_not_make_a_tier_look_active() -> None:
    state = eco(TierDeployment(), running())
    assert (state.warm, state.active_entry) == (False, None)
    assert state.reason == "scaled to zero"


def test_what_runs_speaks_before_what_loads_and_what_failed() -> None:
    failed = ReplicaReport("eco", "c", "failed", None, (("small-alone", "old"),))
    state = eco(TierDeployment(running=1, starting=1), running(), loading(failures=FAILURES, replica="b"), failed)
    assert (state.entry_failures, state.active_entry) == ((), "small-ngram")


def test_a_report_of_one_tier_says_nothing_of_another() -> None:
    observation = observe(small_profile(), {"eco": TierDeployment(running=1)}, [running()], {})
    assert not observation.tier("balanced").warm
    assert observation.tier("balanced").active_entry is None


@pytest.mark.parametrize(("measured_s", "estimate_s"), [(None, 90), (12.5, 12.5)])
def test_the_cold_start_estimate_is_the_profiles_until_one_was_measured(
    measured_s: float | None, estimate_s: float
) -> None:
    assert eco(TierDeployment(), measured_s=measured_s).cold_start_s == estimate_s


def overview(status: DeploymentStatus, **replicas: int) -> DeploymentStatusOverview:
    states = {ReplicaState(name): count for name, count in replicas.items()}
    return DeploymentStatusOverview(status, DeploymentStatusTrigger.UNSPECIFIED, states, "words of Serve")


@pytest.mark.parametrize(
    ("status", "replicas", "expected"),
    [
        (DeploymentStatus.HEALTHY, {}, TierDeployment()),
        (DeploymentStatus.HEALTHY, {"RUNNING": 2, "STOPPING": 1}, TierDeployment(running=2)),
        (DeploymentStatus.UPSCALING, {"STARTING": 1}, TierDeployment(starting=1)),
        (DeploymentStatus.UPDATING, {"UPDATING": 1, "RECOVERING": 2}, TierDeployment(starting=3)),
        (DeploymentStatus.DEPLOY_FAILED, {"STARTING": 1}, TierDeployment(starting=1, failed=True)),
        (DeploymentStatus.DEPLOY_FAILED, {"RUNNING": 1}, TierDeployment(running=1)),
        # A replica that lost its engine is replaced: the tier has not given up.
        (DeploymentStatus.UNHEALTHY, {"STARTING": 1}, TierDeployment(starting=1)),
    ],
)
def test_serves_status_is_read_in_our_terms(
    status: DeploymentStatus, replicas: dict[str, int], expected: TierDeployment
) -> None:
    seen = deployment_state(overview(status, **replicas))
    assert (seen.running, seen.starting, seen.failed) == (expected.running, expected.starting, expected.failed)
    assert seen.unhealthy is (status is DeploymentStatus.UNHEALTHY)
    assert seen.message == "words of Serve"


def test_a_tier_counts_as_gone_over_to_n_gram_drafts_as_soon_as_one_replica_has() -> None:
    reports = [
        ReplicaReport("eco", "a", "running", "small-draft", drafts="own"),
        ReplicaReport("eco", "b", "running", "small-draft", drafts="ngram", drafts_reason="poor"),
        ReplicaReport("eco", "c", "running", "small-draft", drafts="own"),
    ]
    state = eco(TierDeployment(running=3), *reports)
    assert (state.drafts, state.drafts_reason) == ("ngram", "poor")
    state = eco(TierDeployment(running=1), reports[0])
    assert (state.drafts, state.drafts_reason) == ("own", None)
    assert eco(TierDeployment(running=1), running()).drafts is None


def test_the_reports_queue_waits_are_averaged_over_the_replicas_that_run() -> None:
    reports = [
        ReplicaReport("eco", "a", "running", "small-ngram", queue_wait_ms=10.0),
        ReplicaReport("eco", "b", "running", "small-ngram", queue_wait_ms=30.0),
        loading(replica="c"),
    ]
    assert eco(TierDeployment(running=2, starting=1), *reports).queue_wait_ms == 20.0
    assert eco(TierDeployment()).queue_wait_ms == 0.0


def of_gpus(gpus: ClusterGpus, deployment: TierDeployment) -> TierState:
    return observe(small_profile(), {"eco": deployment}, (), {}, gpus).tier("eco")


def test_a_tier_whose_gpu_the_cluster_cannot_have_is_failed_with_the_reason_also_before_anybody_asks() -> None:
    for deployment in (TierDeployment(), TierDeployment(starting=1)):
        state = of_gpus(ClusterGpus(), deployment)
        assert state.failed
        assert state.reason == "the cluster has no node with 1 L4 GPU, and it has no autoscaler to add one"


def test_a_replica_that_waits_for_a_node_says_what_is_being_added() -> None:
    state = of_gpus(ClusterGpus(autoscaler=True, coming={"g6": 1}), TierDeployment(starting=1))
    assert (state.failed, state.pending) == (False, 1)
    assert state.reason == "waiting for a node with 1 L4 GPU; being added: 1 x g6"


def test_a_tier_that_runs_is_not_failed_when_its_last_node_is_about_to_go() -> None:
    state = of_gpus(ClusterGpus(), TierDeployment(running=1))
    assert (state.failed, state.reason) == (False, None)


def test_the_observation_carries_the_clusters_gpus() -> None:
    gpus = ClusterGpus({"L4": GpuSupply(1, 1, 1, 1)})
    assert observe(small_profile(), {}, (), {}, gpus).gpus is gpus


class Cluster:
    """What Serve's controller and Ray say; each look may be scripted to fail."""

    def __init__(self) -> None:
        self.deployments: dict[str, DeploymentStatusOverview] = {}
        self.troubles: list[Exception] = []
        self.looks = 0

    def status(self) -> SimpleNamespace:
        self.looks += 1
        if self.troubles:
            raise self.troubles.pop(0)
        return SimpleNamespace(applications={"power-lever": SimpleNamespace(deployments=self.deployments)})


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()

    async def at_once(function: Callable[[], object]) -> object:
        return function()

    monkeypatch.setattr("ray.serve.get_replica_context", lambda: SimpleNamespace(app_name="power-lever"))
    monkeypatch.setattr("ray.serve.status", cluster.status)
    monkeypatch.setattr("cluster.pool.read_cluster_gpus", ClusterGpus)
    # Virtual time knows no threads.
    monkeypatch.setattr("cluster.pool.asyncio.to_thread", at_once)
    clock = SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time(), time=time.time)
    monkeypatch.setattr("cluster.pool.time", clock)
    return cluster


@pytest.fixture
async def pool(cluster: Cluster) -> AsyncIterator[GpuPool]:
    pool = GpuPool(small_profile(), RunSettings(half_life_runs=50, half_life_s=3600))
    yield pool
    for work in pool._works:
        work.stop()


async def versions(pool: GpuPool, seconds: float) -> list[tuple[float, Observation]]:
    """What an ingress that asks again at once is told in so many seconds, and when."""
    told = list[tuple[float, Observation]]()
    seen = (await pool.news(-1))[0]
    began_s = asyncio.get_running_loop().time()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                version, observation = await pool.news(seen)
                if version != seen:
                    told.append((asyncio.get_running_loop().time() - began_s, observation))
                seen = version
    return told


async def test_a_hundred_replicas_wake_an_ingress_a_few_times_a_second(pool: GpuPool) -> None:
    observed = 0

    async def keep_reporting(number: int) -> None:
        await asyncio.sleep(number / 100)
        for busy in itertools.count():
            await pool.report(running(replica=str(number), busy=busy % 50))
            await asyncio.sleep(1)

    reporting = [asyncio.ensure_future(keep_reporting(number)) for number in range(100)]
    await asyncio.sleep(5)
    publish = pool._publish

    def count() -> None:
        nonlocal observed
        observed += 1
        publish()

    pool._publish = count  # type: ignore[method-assign]
    told = await versions(pool, 10)
    for task in reporting:
        task.cancel()
    assert 30 <= len(told) <= 41
    # What it costs to form an observation of a hundred reports is paid as often, not with each report.
    assert observed <= 41


async def test_news_comes_at_once_after_silence_and_within_the_interval_after_other_news(pool: GpuPool) -> None:
    await asyncio.sleep(3)
    asking = asyncio.ensure_future(versions(pool, 5))
    await asyncio.sleep(0.1)
    await pool.report(running(busy=1))
    await asyncio.sleep(0.01)
    await pool.report(running(busy=2))
    await pool.report(running(busy=3))
    told = await asking
    assert [at_s for at_s, _ in told] == pytest.approx([0.1, 0.1 + NEWS_EVERY_S])
    assert [seen.tier("eco").engine_running for _, seen in told] == [1, 3]


async def test_the_look_survives_its_errors_and_orders_and_runs_survive_with_it(
    pool: GpuPool, cluster: Cluster
) -> None:
    await pool.order_drafts("eco", "ngram")
    await pool.report_runs([run()])
    cluster.deployments["eco"] = overview(DeploymentStatus.HEALTHY, RUNNING=1)
    cluster.troubles = [KeyError("odd"), *[ConnectionError("the controller restarts")] * 5]
    await asyncio.sleep(10)
    assert "failed rounds in" in (await pool.news(-1))[1].failing["pool: look at the cluster"]
    await pool.check_health()
    await asyncio.sleep(20)
    _, observation = await pool.news(-1)
    assert observation.failing == {}
    assert observation.tier("eco").warm
    assert observation.tier("eco").recent.runs == 1
    order = await pool.report(running())
    assert order is not None
    assert order.drafts == "ngram"


async def test_a_pool_that_cannot_look_for_minutes_is_unhealthy(pool: GpuPool, cluster: Cluster) -> None:
    cluster.troubles = [KeyError("odd")] * 1000
    await asyncio.sleep(HOPELESS_AFTER_S + 30)
    with pytest.raises(RuntimeError, match=r"pool: look at the cluster: \d+ failed rounds .* KeyError: 'odd'"):
        await pool.check_health()


async def test_many_replicas_that_change_their_state_at_once_do_not_make_the_looks_chase_each_other(
    pool: GpuPool, cluster: Cluster
) -> None:
    await asyncio.sleep(5)
    before = cluster.looks
    for number in range(100):
        await pool.report(loading(replica=str(number)))
        await asyncio.sleep(0.01)
    assert cluster.looks - before <= 5


async def test_what_a_replica_does_beside_its_requests_and_fails_at_is_told_by_tier(pool: GpuPool) -> None:
    failing = ReplicaReport("eco", "a", "running", "small-ngram", troubles=(("reports", "3 failed rounds"),))
    await pool.report(failing)
    await asyncio.sleep(1)
    assert (await pool.news(-1))[1].failing == {"eco: reports": "3 failed rounds"}


async def test_only_the_newest_failure_of_a_tier_is_kept_until_a_replica_runs(pool: GpuPool) -> None:
    for replica, reason in (("a", "no memory"), ("b", "no disk")):
        await pool.report(loading(replica=replica))
        await pool.report(ReplicaReport("eco", replica, "failed", None, (("small-ngram", reason),)))
    await asyncio.sleep(1)
    assert (await pool.news(-1))[1].tier("eco").entry_failures == (("small-ngram", "no disk"),)
    await pool.report(running(replica="c"))
    await asyncio.sleep(1)
    assert (await pool.news(-1))[1].tier("eco").entry_failures == ()


async def test_a_report_is_answered_with_the_newest_order_to_its_tier(pool: GpuPool) -> None:
    assert await pool.report(running()) is None
    await pool.order_drafts("eco", "ngram")
    await pool.order_drafts("eco", "own")
    order = await pool.report(running())
    assert order is not None
    assert order.drafts == "own"
    assert await pool.report(ReplicaReport("balanced", "x", "running", "a")) is None


async def test_news_is_what_a_report_or_a_look_at_the_cluster_changed(pool: GpuPool) -> None:
    version, observation = await pool.news(-1)
    while observation.gpus is None:
        version, observation = await pool.news(version)
    assert observation.gpus == ClusterGpus()
    await pool.report(running(busy=3))
    later, observation = await pool.news(version)
    assert later > version
    assert observation.tier("eco").engine_running == 3


async def test_reported_runs_are_news_for_everybody_by_tier_and_category(pool: GpuPool) -> None:
    version, _ = await pool.news(-1)
    await pool.report_runs([run(ttft_ms=100), run(ttft_ms=300), run("ultra", category="code")])
    later, observation = await pool.news(version)
    assert later > version
    eco = observation.tier("eco")
    assert eco.recent.ttft_ms is not None
    assert eco.recent.ttft_ms.mean == pytest.approx(200, rel=0.01)
    assert set(eco.recent_by_category) == {"math"}
    assert set(observation.tier("ultra").recent_by_category) == {"code"}
    assert observation.tier("balanced").recent.runs == 0
    # What a replica reports afterwards does not wipe them out.
    await pool.report(running())
    _, observation = await pool.news(later)
    assert observation.tier("eco").recent.ttft_ms == eco.recent.ttft_ms
