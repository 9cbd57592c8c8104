"""What vLLM's scheduler bills: the shares of all requests add up to the time in which the engine was busy."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serve_app.engine.vllm.step_times import StepTimes
from tests.support.scheduler_driver import Driver, scheduler_config

STOP = 9
"""The driver's own token, so a request that stops at it ends with its first one that is no draft."""


@pytest.fixture(params=[3, 0], ids=["drafting", "without drafts"], scope="module")
def config(request: pytest.FixtureRequest, tiny_models: Path) -> Any:
    return scheduler_config(tiny_models, request.param)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("serve_app.engine.vllm.sharing_scheduler.time.monotonic", clock)
    return clock


def run(driver: Driver, clock: Clock, step_s: Iterator[float]) -> None:
    """Run until nothing is left, two steps at a time, as the engine core does."""
    under_way: deque[Any] = deque()
    while driver.scheduler.has_unfinished_requests() or under_way:
        while len(under_way) < 2 and (step := driver.schedule()).total_num_scheduled_tokens:
            under_way.append(step)
        clock.now_s += next(step_s)
        driver.update(under_way.popleft())


def test_a_request_alone_pays_for_every_second_in_which_the_engine_was_busy(config: Any, clock: Clock) -> None:
    driver = Driver(config)
    clock.now_s += 50  # nobody was there
    driver.add("a", 0, max_tokens=5)

    run(driver, clock, iter([0.5, 0.1, 0.1, 0.1, 0.1]))

    assert driver.totals.busy_s == pytest.approx(0.9)
    assert driver.billed_s == pytest.approx(0.9)
    assert [record.busy_s for record in driver.records["a"]] == pytest.approx([0.5, 0.1, 0.1, 0.1, 0.1])


def test_equal_requests_pay_the_same(config: Any, clock: Clock) -> None:
    driver = Driver(config)
    for name in "abc":
        driver.add(name, 1, max_tokens=8)

    run(driver, clock, iter([0.3] * 50))

    bills = [sum(record.busy_s for record in driver.records[name]) for name in "abc"]
    assert bills == pytest.approx([driver.totals.busy_s / 3] * 3)


def test_who_reads_a_long_prompt_pays_for_it_and_who_decodes_beside_it_pays_a_little(config: Any, clock: Clock) -> None:
    driver = Driver(config)
    driver.add("decodes", 0, max_tokens=30)
    # Steps of few tokens, so that their cost is known, then a long prompt in pieces.
    for _ in range(12):
        step = driver.schedule()
        clock.now_s += 0.01
        driver.update(step)
    driver.add("reads", 0, prompt=120, max_tokens=2)
    for seconds in (0.2, 0.2):
        step = driver.schedule()
        clock.now_s += seconds
        driver.update(step)

    beside = sum(record.busy_s for record in driver.records["decodes"][12:14])
    [reads] = driver.records["reads"]
    assert beside < 0.1 < 0.3 < reads.busy_s
    assert beside + reads.busy_s == pytest.approx(0.4)


def test_an_answer_that_ends_at_a_stop_pays_in_advance_for_the_step_that_had_begun(config: Any, clock: Clock) -> None:
    driver = Driver(config)
    driver.add("long", 0, max_tokens=60)
    run_steps(driver, clock, 20, 0.1)
    driver.add("stops", 0, stops=[STOP])

    run(driver, clock, iter([0.1] * 100))

    totals = driver.totals
    assert driver.billed_s + totals.late_s == pytest.approx(totals.busy_s)
    assert totals.left_s == 0
    assert abs(totals.late_s) < 0.01 * totals.busy_s


def run_steps(driver: Driver, clock: Clock, steps: int, step_s: float) -> None:
    for _ in range(steps):
        step = driver.schedule()
        clock.now_s += step_s
        driver.update(step)


def test_a_request_that_was_aborted_leaves_what_it_owes(config: Any, clock: Clock) -> None:
    driver = Driver(config)
    driver.add("a", 0, prompt=100)
    step = driver.schedule()  # a part of its prompt
    clock.now_s += 0.5
    driver.update(step)
    after = driver.schedule()
    driver.abort("a")
    clock.now_s += 0.25
    driver.update(after)

    assert driver.records == {}
    assert driver.totals == pytest.approx((0.75, 0.75, 0.0))


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_lost_or_billed_twice_with_aborts_preemptions_stops_and_prompts_in_pieces(
    config: Any, clock: Clock, seed: int
) -> None:
    chance = random.Random(seed)
    driver = Driver(config, blocks=12)
    started_s = clock.now_s
    under_way: deque[Any] = deque()
    alive: list[str] = []
    preempted = 0
    for number in range(400):
        if chance.random() < 0.2 and len(alive) < 6:
            stops = [STOP] if chance.random() < 0.2 else []
            driver.add(str(number), chance.randint(0, 3), prompt=chance.randint(1, 90), max_tokens=30, stops=stops)
            alive.append(str(number))
        if alive and chance.random() < 0.03:
            driver.abort(alive.pop(chance.randrange(len(alive))))
        alive = [key for key in alive if key in driver.scheduler.requests]
        if len(under_way) < 2 and driver.scheduler.has_unfinished_requests():
            scheduled = driver.schedule()
            preempted += len(scheduled.preempted_req_ids or ())
            if scheduled.total_num_scheduled_tokens:
                under_way.append(scheduled)
        clock.now_s += chance.choice([0.01, 0.02, 0.2])
        if under_way and chance.random() < 0.7:
            times = StepTimes(verify_s=0.01, draft_s=0.005, depth=2) if chance.random() < 0.5 else None
            driver.update(under_way.popleft(), times=times)
    while under_way:
        driver.update(under_way.popleft())
    for key in alive:
        driver.abort(key)

    totals = driver.totals
    assert preempted > 0
    assert len(driver.records) > 20
    assert driver.billed_s + totals.left_s + totals.late_s == pytest.approx(totals.busy_s)
    assert 0.3 * (clock.now_s - started_s) < totals.busy_s <= clock.now_s - started_s
    assert all(record.busy_s >= 0 for records in driver.records.values() for record in records)
