"""Finished runs go to the pool in batches, and wait while it is away."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError

from router.observation import Observation, TierState
from router.plan import plan
from router.request import InferenceRequest
from router.runs.summary import RunReport
from serve_app.pool.outbox import MOST_WAITING, Outbox
from serve_app.pool.run_reports import run_report
from tests.support.app_config import app_config
from tests.support.runs import run

AWAY = ActorUnavailableError("restarting", b"1" * 16)
METRICS: dict[str, Any] = {
    "ttft_ms": 100.0,
    "queue_ms": 20.0,
    "total_ms": 1100.0,
    "tokens_per_sec": 47.2,
    "prompt_tokens": 10,
    "completion_tokens": 51,
    "finish_reason": "stop",
    "spec": {"draft_tokens": 40, "accepted_tokens": 10},
    "energy": {"wh": 0.5, "source": "modelled"},
    "cost_usd": 0.25,
}


class FakePool:
    """A pool's handle and its `report_runs` method. Each call raises the next of the troubles, if there is one."""

    def __init__(self, troubles: Iterable[BaseException | None] = ()) -> None:
        self.troubles = list(troubles)
        self.batches: list[list[RunReport]] = []

    @property
    def report_runs(self) -> FakePool:
        return self

    async def remote(self, batch: list[RunReport]) -> None:
        if self.troubles and (trouble := self.troubles.pop(0)):
            raise trouble
        self.batches.append(batch)


async def working(reporter: Outbox[RunReport], seconds: float) -> None:
    reporter.work.start()
    await asyncio.sleep(seconds)
    reporter.work.stop()


def numbered(count: int) -> list[RunReport]:
    return [run(ttft_ms=float(number)) for number in range(count)]


async def test_reports_within_half_a_second_are_one_batch_and_silence_sends_nothing() -> None:
    pool = FakePool()
    reporter = Outbox("reports", pool.remote)
    reporter.work.start()
    await asyncio.sleep(100)
    assert pool.batches == []
    first, second, third = numbered(3)
    reporter.add(first)
    await asyncio.sleep(0.4)
    reporter.add(second)
    await asyncio.sleep(0.2)
    assert pool.batches == [[first, second]]
    reporter.add(third)
    await asyncio.sleep(1)
    reporter.work.stop()
    assert pool.batches == [[first, second], [third]]


@pytest.mark.parametrize("trouble", [AWAY, TimeoutError(), asyncio.CancelledError(), KeyError("nobody expects this")])
async def test_a_batch_that_failed_is_sent_again_with_the_newer_reports(trouble: BaseException) -> None:
    pool = FakePool([trouble, trouble])
    reporter = Outbox("reports", pool.remote)
    reports = numbered(2)
    reporter.add(reports[0])
    reporter.work.start()
    await asyncio.sleep(0.6)
    reporter.add(reports[1])
    await asyncio.sleep(10)
    reporter.work.stop()
    assert pool.batches == [reports]


async def test_while_the_pool_is_away_only_the_newest_reports_are_kept() -> None:
    pool = FakePool([AWAY])
    reporter = Outbox("reports", pool.remote)
    reports = numbered(MOST_WAITING + 5)
    for report in reports[:MOST_WAITING]:
        reporter.add(report)
    with pytest.raises(ActorUnavailableError):
        await reporter.send()
    for report in reports[MOST_WAITING:]:
        reporter.add(report)
    await working(reporter, 5)
    assert pool.batches == [reports[5:]]


async def test_without_reports_nothing_is_sent() -> None:
    pool = FakePool()
    await Outbox("reports", pool.remote).send()
    assert pool.batches == []


@pytest.mark.parametrize(
    ("ended", "counted"), [("stop", "stop"), ("length", "length"), ("abort", "other"), ("tool_calls", "other")]
)
def test_a_report_has_the_plans_tier_and_category_and_the_measured_figures(ended: str, counted: str) -> None:
    request = InferenceRequest(prompt="What is the capital of France?", mode="manual", power=60)
    decision = plan(request, Observation({"performance": TierState(running=1)}), app_config())
    assert run_report(decision, METRICS | {"finish_reason": ended}) == RunReport(
        tier="performance",
        category="simple_question",
        ttft_ms=100.0,
        queue_ms=20.0,
        total_ms=1100.0,
        tokens_per_s=47.2,
        completion_tokens=51,
        draft_tokens=40,
        accepted_tokens=10,
        energy_wh=0.5,
        cost_usd=0.25,
        finish_reason=counted,  # type: ignore[arg-type]
    )
