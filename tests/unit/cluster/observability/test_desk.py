"""A question is answered with everything that happened before it, soon, and without a replica that is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry, Counter

from cluster.observability.desk import ANSWER_WITHIN_S, HOLD_S, SILENT_S, MetricsDesk
from cluster.observability.totals import MetricsReport, Snapshot, growth, snapshot


class Replica:
    """Reports to a desk as `MetricsReports` does."""

    def __init__(self, desk: MetricsDesk, name: str) -> None:
        self.desk, self.name, self.rounds = desk, name, 0
        self.registry = CollectorRegistry()
        self.requests = Counter("requests", "Requests.", registry=self.registry)
        self._sent: Snapshot = {}
        self._asked = 0

    def report(self) -> MetricsReport:
        self.rounds += 1
        now = snapshot(self.registry.collect())
        report = MetricsReport(self.name, self.rounds, self._asked, growth(now, self._sent), {})
        self._sent = now
        return report

    async def work(self) -> None:
        while True:
            self._asked = await self.desk.take(self.report())


@asynccontextmanager
async def working(*replicas: Replica) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(replica.work()) for replica in replicas]
    await asyncio.sleep(0.1)
    yield
    for task in tasks:
        task.cancel()


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def requests_seen(desk: MetricsDesk) -> float:
    [line] = [line for line in (await desk.answer()).decode().splitlines() if line.startswith("requests_total")]
    return float(line.split()[1])


async def test_an_answer_has_what_was_counted_a_moment_ago_by_every_replica_and_takes_no_time() -> None:
    desk = MetricsDesk(dict)
    replicas = (Replica(desk, "a"), Replica(desk, "b"))
    async with working(*replicas):
        for number in (1, 2, 3):
            for replica in replicas:
                replica.requests.inc()
            began_s = now_s()
            assert await requests_seen(desk) == 2 * number
            assert now_s() == began_s


async def test_without_questions_a_replica_reports_once_in_a_while() -> None:
    desk = MetricsDesk(dict)
    replica = Replica(desk, "a")
    async with working(replica):
        await asyncio.sleep(10 * HOLD_S)
    assert 10 <= replica.rounds <= 12


async def test_questions_at_the_same_time_ask_the_replicas_together() -> None:
    desk = MetricsDesk(dict)
    replica = Replica(desk, "a")
    async with working(replica):
        replica.requests.inc()
        before = replica.rounds
        answers = await asyncio.gather(*(requests_seen(desk) for _ in range(100)))
        assert answers == [1] * 100
        # One for the first, one for all that came meanwhile.
        assert replica.rounds - before <= 3


async def test_a_replica_that_is_stuck_holds_up_an_answer_for_a_while_and_then_counts_as_gone() -> None:
    desk = MetricsDesk(dict)
    stuck = Replica(desk, "stuck")
    stuck.requests.inc()
    async with working(stuck):
        await asyncio.sleep(0.1)
    began_s = now_s()
    assert await requests_seen(desk) == 1
    assert now_s() - began_s == ANSWER_WITHIN_S
    await asyncio.sleep(SILENT_S)
    began_s = now_s()
    assert await requests_seen(desk) == 1
    assert now_s() == began_s


async def test_the_last_report_of_a_replica_counts_and_nobody_waits_for_it() -> None:
    desk = MetricsDesk(dict)
    replica = Replica(desk, "a")
    async with working(replica):
        pass
    replica.requests.inc()
    desk.take_last(replica.report())
    began_s = now_s()
    assert await requests_seen(desk) == 1
    assert now_s() == began_s


async def test_somebody_who_stops_waiting_for_an_answer_stops_nobody_elses() -> None:
    desk = MetricsDesk(dict)
    replica = Replica(desk, "a")
    async with working(replica):
        first = asyncio.ensure_future(desk.answer())
        second = asyncio.ensure_future(desk.answer())
        await asyncio.sleep(0)
        first.cancel()
        assert b"requests_total" in await second
