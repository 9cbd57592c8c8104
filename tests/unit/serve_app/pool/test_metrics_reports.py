"""A replica's reports: what was added since the last that arrived, also when the pool is away or restarts."""

from __future__ import annotations

import asyncio
from typing import cast

from prometheus_client import CollectorRegistry, Counter
from ray.exceptions import ActorUnavailableError
from ray.serve.handle import DeploymentHandle

from cluster.observability.totals import MetricsReport, snapshot
from serve_app.pool.metrics_reports import MetricsReports

AWAY = ActorUnavailableError("restarting", b"1" * 16)


class Pool:
    """The pool's two methods; it fails as often as the test says, after it has taken the report or before."""

    def __init__(self) -> None:
        self.taken: list[MetricsReport] = []
        self.last: list[MetricsReport] = []
        self.lost_calls = self.lost_answers = 0
        self.report_metrics, self.report_last_metrics = Method(self, self.taken), Method(self, self.last)


class Method:
    def __init__(self, pool: Pool, reports: list[MetricsReport]) -> None:
        self.pool, self.reports = pool, reports

    async def remote(self, report: MetricsReport) -> int:
        if self.pool.lost_calls:
            self.pool.lost_calls -= 1
            raise AWAY
        self.reports.append(report)
        if self.pool.lost_answers:
            self.pool.lost_answers -= 1
            raise AWAY
        if self.reports is self.pool.taken:
            await asyncio.sleep(2)
        return 7


class Replica:
    def __init__(self, pool: Pool) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("requests", "Requests.", registry=self.registry)
        handle = cast(DeploymentHandle, pool)
        self.reports = MetricsReports(handle, "a", lambda: snapshot(self.registry.collect()))


def added(report: MetricsReport) -> float:
    return sum(sum(samples.values()) for samples in report.added.values())


async def test_a_report_holds_what_was_added_since_the_last_and_the_question_that_is_known() -> None:
    pool = Pool()
    replica = Replica(pool)
    replica.requests.inc(3)
    replica.reports.work.start()
    await asyncio.sleep(1)
    replica.requests.inc(2)
    await asyncio.sleep(2)
    replica.reports.work.stop()
    assert [(report.number, added(report), report.asked) for report in pool.taken] == [(1, 3, 0), (2, 2, 7)]


async def test_a_report_that_may_not_have_arrived_is_sent_again_as_it_was() -> None:
    pool = Pool()
    replica = Replica(pool)
    pool.lost_answers = 2
    replica.requests.inc(3)
    replica.reports.work.start()
    await asyncio.sleep(0.1)
    replica.requests.inc(2)
    await asyncio.sleep(5)
    replica.reports.work.stop()
    assert [(report.number, added(report)) for report in pool.taken[:4]] == [(1, 3), (1, 3), (1, 3), (2, 2)]


async def test_nothing_is_lost_while_the_pool_is_away() -> None:
    pool = Pool()
    replica = Replica(pool)
    pool.lost_calls = 2
    replica.requests.inc(3)
    replica.reports.work.start()
    await asyncio.sleep(0.1)
    replica.requests.inc(2)
    await asyncio.sleep(5)
    replica.reports.work.stop()
    assert sum(added(report) for report in pool.taken) == 5


async def test_a_replica_that_stops_sends_what_is_on_its_way_and_what_came_since() -> None:
    pool = Pool()
    replica = Replica(pool)
    replica.requests.inc(3)
    replica.reports.work.start()
    await asyncio.sleep(1)  # the pool holds the first report
    replica.requests.inc(2)
    await replica.reports.send_last()
    assert [(report.number, added(report)) for report in pool.last] == [(1, 3), (2, 2)]


async def test_a_replica_that_stops_without_a_pool_stops_all_the_same() -> None:
    pool = Pool()
    pool.lost_calls = 5
    await Replica(pool).reports.send_last()
    assert pool.last == []
