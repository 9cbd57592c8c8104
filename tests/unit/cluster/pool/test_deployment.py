"""The pool takes reports, refreshes its view of the cluster and broadcasts observations. Time is virtual."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping
from types import SimpleNamespace

import pytest
from ray.serve._private.common import DeploymentStatus
from ray.serve.schema import DeploymentStatusOverview

from cluster.pool.decisions import KEPT_S, KeptDecision
from cluster.pool.deployment import BROADCAST_EVERY_S, GpuPool
from cluster.pool.messages import ReplicaReport
from cluster.supervision import HOPELESS_AFTER_S
from router.observation import ClusterGpus, Observation
from tests.support.runs import run
from tests.unit.cluster.pool.reports import loading, overview, running
from tests.unit.router.profiles import small_profile


class Cluster:
    """What Serve's controller and Ray say. Refreshes may be scripted to fail."""

    def __init__(self) -> None:
        self.deployments: dict[str, DeploymentStatusOverview] = {}
        self.errors: list[Exception] = []
        self.refreshes = 0

    def read(self, app_name: str) -> Mapping[str, DeploymentStatusOverview]:
        assert app_name == "power-lever"
        self.refreshes += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.deployments


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()

    async def at_once(function: Callable[..., object], *arguments: object) -> object:
        return function(*arguments)

    monkeypatch.setattr("ray.serve.get_replica_context", lambda: SimpleNamespace(app_name="power-lever"))
    monkeypatch.setattr("cluster.pool.deployment.read_deployments", cluster.read)
    monkeypatch.setattr("cluster.pool.deployment.read_cluster_gpus", ClusterGpus)
    # Virtual time knows no threads.
    monkeypatch.setattr("cluster.pool.deployment.asyncio.to_thread", at_once)
    clock = SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time(), time=time.time)
    monkeypatch.setattr("cluster.pool.deployment.time", clock)
    return cluster


@pytest.fixture
async def pool(cluster: Cluster) -> AsyncIterator[GpuPool]:
    pool = GpuPool(small_profile())
    yield pool
    for task in pool._tasks:
        task.stop()


async def versions(pool: GpuPool, seconds: float) -> list[tuple[float, Observation]]:
    """Long-poll the pool for so many seconds; return each new observation with its time."""
    received = list[tuple[float, Observation]]()
    seen = (await pool.wait_for_update(-1))[0]
    began_s = asyncio.get_running_loop().time()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                version, observation = await pool.wait_for_update(seen)
                if version != seen:
                    received.append((asyncio.get_running_loop().time() - began_s, observation))
                seen = version
    return received


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
    received = await versions(pool, 10)
    for task in reporting:
        task.cancel()
    assert 30 <= len(received) <= 41
    # The cost of joining a hundred reports is paid per broadcast, not per report.
    assert observed <= 41


async def test_an_update_is_broadcast_at_once_or_after_the_interval_since_the_last_one(pool: GpuPool) -> None:
    await asyncio.sleep(3)
    asking = asyncio.ensure_future(versions(pool, 5))
    await asyncio.sleep(0.1)
    await pool.report(running(busy=1))
    await asyncio.sleep(0.01)
    await pool.report(running(busy=2))
    await pool.report(running(busy=3))
    received = await asking
    assert [at_s for at_s, _ in received] == pytest.approx([0.1, 0.1 + BROADCAST_EVERY_S])
    assert [seen.tier("eco").engine_running for _, seen in received] == [1, 3]


async def test_refresh_errors_lose_neither_draft_orders_nor_runs(pool: GpuPool, cluster: Cluster) -> None:
    await pool.order_drafts("eco", "ngram")
    await pool.report_runs([run()])
    cluster.deployments["eco"] = overview(DeploymentStatus.HEALTHY, RUNNING=1)
    cluster.errors = [KeyError("odd"), *[ConnectionError("the controller restarts")] * 5]
    await asyncio.sleep(10)
    assert "failed rounds in" in (await pool.wait_for_update(-1))[1].failing["pool: refresh"]
    await pool.check_health()
    await asyncio.sleep(20)
    _, observation = await pool.wait_for_update(-1)
    assert observation.failing == {}
    assert observation.tier("eco").warm
    assert observation.tier("eco").recent.runs == 1
    order = await pool.report(running())
    assert order is not None
    assert order.drafts == "ngram"


async def test_a_pool_that_cannot_refresh_for_minutes_is_unhealthy(pool: GpuPool, cluster: Cluster) -> None:
    cluster.errors = [KeyError("odd")] * 1000
    await asyncio.sleep(HOPELESS_AFTER_S + 30)
    with pytest.raises(RuntimeError, match=r"pool: refresh: \d+ failed rounds .* KeyError: 'odd'"):
        await pool.check_health()


async def test_many_state_changes_at_once_cause_few_refreshes(pool: GpuPool, cluster: Cluster) -> None:
    await asyncio.sleep(5)
    before = cluster.refreshes
    for number in range(100):
        await pool.report(loading(replica=str(number)))
        await asyncio.sleep(0.01)
    assert cluster.refreshes - before <= 5


async def test_failing_background_tasks_of_a_replica_are_shown_with_its_tier(pool: GpuPool) -> None:
    failing = ReplicaReport("eco", "a", "running", "small-ngram", troubles=(("reports", "3 failed rounds"),))
    await pool.report(failing)
    await asyncio.sleep(1)
    assert (await pool.wait_for_update(-1))[1].failing == {"eco: reports": "3 failed rounds"}


async def test_only_the_newest_failure_of_a_tier_is_kept_until_a_replica_runs(pool: GpuPool) -> None:
    for replica, reason in (("a", "no memory"), ("b", "no disk")):
        await pool.report(loading(replica=replica))
        await pool.report(ReplicaReport("eco", replica, "failed", None, (("small-ngram", reason),)))
    await asyncio.sleep(1)
    assert (await pool.wait_for_update(-1))[1].tier("eco").entry_failures == (("small-ngram", "no disk"),)
    await pool.report(running(replica="c"))
    await asyncio.sleep(1)
    assert (await pool.wait_for_update(-1))[1].tier("eco").entry_failures == ()


async def test_the_answer_to_a_report_is_the_newest_draft_order_to_its_tier(pool: GpuPool) -> None:
    assert await pool.report(running()) is None
    await pool.order_drafts("eco", "ngram")
    await pool.order_drafts("eco", "own")
    order = await pool.report(running())
    assert order is not None
    assert order.drafts == "own"
    assert await pool.report(ReplicaReport("balanced", "x", "running", "a")) is None


async def test_a_report_or_a_refresh_makes_a_new_version(pool: GpuPool) -> None:
    version, observation = await pool.wait_for_update(-1)
    while observation.gpus is None:
        version, observation = await pool.wait_for_update(version)
    assert observation.gpus == ClusterGpus()
    await pool.report(running(busy=3))
    later, observation = await pool.wait_for_update(version)
    assert later > version
    assert observation.tier("eco").engine_running == 3


async def test_reported_runs_are_broadcast_by_tier_and_category(pool: GpuPool) -> None:
    version, _ = await pool.wait_for_update(-1)
    await pool.report_runs([run(ttft_ms=100), run(ttft_ms=300), run("ultra", category="code")])
    later, observation = await pool.wait_for_update(version)
    assert later > version
    eco = observation.tier("eco")
    assert eco.recent.ttft_ms is not None
    assert eco.recent.ttft_ms.mean == pytest.approx(200, rel=0.01)
    assert set(eco.recent_by_category) == {"math"}
    assert set(observation.tier("ultra").recent_by_category) == {"code"}
    assert observation.tier("balanced").recent.runs == 0
    # What a replica reports afterwards does not wipe them out.
    await pool.report(running())
    _, observation = await pool.wait_for_update(later)
    assert observation.tier("eco").recent.ttft_ms == eco.recent.ttft_ms


async def test_a_decision_is_kept_for_an_hour(pool: GpuPool) -> None:
    await pool.keep_decisions([KeptDecision("a", b"record")])
    assert await pool.decision("a") == b"record"
    assert await pool.decision("b") is None
    await asyncio.sleep(KEPT_S + 1)
    assert await pool.decision("a") is None
