"""Ingress replicas on one clock that ask one pool over a network that takes its time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from cluster.pool.allowances import RENEW_EVERY_S, Account, Allowances, Grant, Statement
from serve_app.admission.allowance import MINUTE_S
from serve_app.pool.allowance_desk import ANSWER_WITHIN_S, AllowanceDesk, Want

REQUESTS, SLOTS = Account("alice", "requests_per_minute"), Account("alice", "max_concurrent")


class Network:
    """Between the desks and the pool."""

    def __init__(self, replicas: int = 1, seed: int = 0, slowest_s: float = 0.005) -> None:
        self.pool = Allowances()
        self.calls: list[tuple[str, Sequence[Statement]]] = []
        self.under_way: dict[str, int] = {}
        self.slowest_s = slowest_s
        self._random = random.Random(seed)
        self.desks = [AllowanceDesk(self._line(f"replica-{number}"), replicas) for number in range(replicas)]

    def _line(self, name: str) -> Any:
        async def call(number: int, statements: Sequence[Statement]) -> list[Grant]:
            self.calls.append((name, statements))
            self.under_way[name] = self.under_way.get(name, 0) + 1
            assert self.under_way[name] == 1, "an older answer must not follow a newer"
            try:
                await asyncio.sleep(self._random.uniform(0, self.slowest_s))
                grants = self.pool.lease(name, number, statements, asyncio.get_running_loop().time())
                await asyncio.sleep(self._random.uniform(0, self.slowest_s))
            finally:
                self.under_way[name] -= 1
            return grants

        return call


def request(most: float, amount: float = 1) -> list[Want]:
    return [Want(REQUESTS, most, amount, amount)]


def used(desk: AllowanceDesk) -> None:
    desk._allowances[REQUESTS].use(1, desk.now_s(), MINUTE_S, held=1)


async def test_a_burst_is_one_question() -> None:
    network = Network()
    (desk,) = network.desks
    held = await asyncio.gather(*(desk.hold(request(30)) for _ in range(50)))
    assert sum(each is not None for each in held) == 30
    assert len(network.calls) == 1


async def test_who_comes_while_an_answer_is_under_way_waits_for_the_next_if_it_must() -> None:
    network = Network(slowest_s=0.1)
    (desk,) = network.desks
    first = asyncio.ensure_future(desk.hold(request(2)))
    await asyncio.sleep(0)
    later = [asyncio.ensure_future(desk.hold(request(2))) for _ in range(2)]
    assert await first == [1]
    assert [await each for each in later] == [[1], None]
    assert len(network.calls) == 2


async def test_an_answer_counts_also_if_the_next_one_fails_before_it_is_read() -> None:
    network = Network()
    (desk,) = network.desks
    there = desk._call

    async def once(number: int, statements: Sequence[Statement]) -> list[Grant]:
        if number == 1:
            return await there(number, statements)
        raise TimeoutError

    desk._call = once
    first = asyncio.ensure_future(desk.hold(request(1)))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(desk.hold(request(1)))
    assert [await first, await second] == [[1], None]
    assert desk.of(REQUESTS, 1).held == 1


async def test_of_several_limits_a_request_holds_all_or_nothing() -> None:
    network = Network()
    (desk,) = network.desks
    wants = [*request(10), Want(SLOTS, 1, 1, 1)]
    assert await desk.hold(wants) == [1, 1]
    assert await desk.hold(wants) is None
    assert desk.of(REQUESTS, 10).held == 1
    desk.give_back(SLOTS, 1)
    assert await desk.hold(wants) == [1, 1]


async def test_less_than_wanted_is_held_where_that_is_of_use() -> None:
    (desk,) = Network().desks
    assert await desk.hold([Want(REQUESTS, 10, 7, 1)]) == [7]
    assert await desk.hold([Want(REQUESTS, 10, 7, 1)]) == [3]
    assert await desk.hold([Want(REQUESTS, 10, 7, 1)]) is None


async def test_a_silent_pool_is_waited_for_once() -> None:
    network = Network(replicas=2, slowest_s=1000)
    desk, loop = network.desks[0], asyncio.get_running_loop()
    began_s = loop.time()
    held = await asyncio.gather(*(desk.hold(request(10)) for _ in range(8)))
    assert sum(each is not None for each in held) == 5
    assert loop.time() - began_s == pytest.approx(ANSWER_WITHIN_S)
    await asyncio.sleep(1)
    assert desk.is_alone
    began_s = loop.time()
    assert await desk.hold(request(10)) is None
    assert loop.time() == began_s


async def test_a_busy_pool_is_waited_for_and_says_exactly_what_is_left() -> None:
    network = Network(replicas=2, slowest_s=1.9)
    held = await asyncio.gather(*(desk.hold(request(30)) for _ in range(100) for desk in network.desks))
    assert sum(each is not None for each in held) == 30
    assert not any(desk.is_alone for desk in network.desks)


async def test_a_call_that_is_cancelled_as_the_pool_goes_away_holds_nobody_up() -> None:
    network = Network(replicas=2)
    desk, loop = network.desks[0], asyncio.get_running_loop()

    async def cancelled(number: int, statements: Sequence[Statement]) -> list[Grant]:
        raise asyncio.CancelledError

    desk._call = cancelled
    began_s = loop.time()
    held = await asyncio.gather(*(desk.hold(request(10)) for _ in range(8)))
    assert sum(each is not None for each in held) == 5
    assert loop.time() == began_s
    assert desk.is_alone


async def test_a_replica_that_ends_does_not_wait_for_a_silent_pool() -> None:
    network = Network()
    (desk,) = network.desks
    await desk.hold(request(10))
    network.slowest_s, began_s = 1000, asyncio.get_running_loop().time()
    await desk.say_last()
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(1)


async def test_only_who_comes_sets_the_limit() -> None:
    (desk,) = Network().desks
    await desk.hold(request(1000, 4))
    assert await desk.hold(request(5)) == [1]
    desk.of(REQUESTS, 1000)  # as a request does that came under another limit
    desk.give_back(REQUESTS, 0)
    assert desk.of(REQUESTS, 1000).most == 5
    assert await desk.hold(request(5)) is None


async def test_what_is_not_used_comes_back_within_a_second() -> None:
    network = Network(replicas=2, slowest_s=0)
    one, other = network.desks
    for desk in network.desks:
        desk.work.start()
    for _ in range(40):
        assert await one.hold(request(600)) is not None
        used(one)
    await asyncio.sleep(2 * RENEW_EVERY_S + 2.1)  # nothing was taken for two seconds
    taken = 0
    while await other.hold(request(600)) is not None:
        used(other)
        taken += 1
    assert taken == 560
    for desk in network.desks:
        desk.work.stop()


async def test_a_replica_that_ends_says_what_it_used_last() -> None:
    network = Network(replicas=2)
    one, other = network.desks
    await one.hold(request(10, 4))
    one._allowances[REQUESTS].use(4, one.now_s(), MINUTE_S, held=4)
    await one.say_last()
    assert await other.hold(request(10, 7)) is None
    assert await other.hold(request(10, 6)) == [6]


async def test_nothing_is_said_where_nothing_is_in_use() -> None:
    network = Network()
    (desk,) = network.desks
    desk.work.start()
    await desk.hold(request(10))
    used(desk)
    await asyncio.sleep(70)
    before = len(network.calls)
    await asyncio.sleep(600)
    assert len(network.calls) == before
    desk.work.stop()


@pytest.mark.parametrize("slowest_s", [0.2, 1.9])
@pytest.mark.parametrize("seed", range(8))
async def test_no_minute_has_more_than_the_limit_while_the_pool_is_there(seed: int, slowest_s: float) -> None:
    most, chance, loop = 40, random.Random(seed), asyncio.get_running_loop()
    network = Network(replicas=3, seed=seed, slowest_s=slowest_s)
    let_in: list[float] = []

    async def ask(desk: AllowanceDesk) -> None:
        if await desk.hold(request(most)) is None:
            return
        await asyncio.sleep(chance.uniform(0, 2))  # until it is known that it is let in
        let_in.append(loop.time())
        used(desk)

    for desk in network.desks:
        desk.work.start()
    asking = []
    for _ in range(600):
        await asyncio.sleep(chance.uniform(0, 0.4))
        asking.append(asyncio.ensure_future(ask(chance.choice(network.desks))))
    await asyncio.gather(*asking)
    for desk in network.desks:
        desk.work.stop()
    worst = max(sum(each - MINUTE_S < one <= each for one in let_in) for each in let_in)
    assert most - 3 <= worst <= most


async def test_a_pool_that_begins_anew_knows_within_two_seconds_what_was_used() -> None:
    network = Network(replicas=2)
    one, other = network.desks
    for desk in network.desks:
        desk.work.start()
    for _ in range(10):
        await one.hold(request(10))
        used(one)
    await asyncio.sleep(5)
    network.pool = Allowances()
    await asyncio.sleep(3)
    assert await other.hold(request(10)) is None
    for desk in network.desks:
        desk.work.stop()
