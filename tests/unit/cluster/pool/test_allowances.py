"""Many ingress replicas and one pool: whatever they do, no minute has more than the limit."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.pool.allowances import GONE_AFTER_S, LEASE_S, Account, Allowances, Statement, Use
from serve_app.admission.allowance import MINUTE_S, Allowance

REQUESTS = Account("alice", "requests_per_minute")


def statement(
    most: float, *, uses: tuple[Use, ...] = (), held: float = 0, need: float = 0, ahead: float = 0
) -> Statement:
    return Statement(REQUESTS, most, uses, held, need, ahead, least=1)


def take(here: Allowance, amount: float, now_s: float) -> bool:
    """Hold an amount, if it was granted."""
    if here.free(now_s) < amount * (1 - 1e-9):
        return False
    here.hold(amount, now_s)
    return True


def take_alone(here: Allowance, amount: float, now_s: float) -> bool:
    if here.alone(now_s) < amount:
        return False
    here.hold(amount, now_s)
    return True


def ask(pool: Allowances, replica: str, now_s: float, given: Statement, number: int = 1) -> tuple[float, float | None]:
    """Lease, and when a unit is there again."""
    (grant,) = pool.lease(replica, number, [given], now_s)
    return grant.lease, grant.retry_s


def test_replicas_share_what_is_left() -> None:
    pool = Allowances()
    assert ask(pool, "a", 0, statement(10, need=6))[0] == 6
    assert ask(pool, "b", 0, statement(10, need=6))[0] == 4
    assert ask(pool, "b", 0.1, statement(10, held=4, need=1), 2) == (0, None)  # all is held: nobody knows until when


def test_what_was_used_counts_until_it_expires() -> None:
    pool = Allowances()
    ask(pool, "a", 0, statement(3, uses=(Use(60, 1), Use(61, 2))))
    assert ask(pool, "b", 0, statement(3, need=1)) == (0, 60)
    lease, retry_s = ask(pool, "b", 59.5, statement(3, need=1), 2)
    assert (lease, retry_s) == (0, 0.5)
    assert ask(pool, "b", 60, statement(3, need=1), 3)[0] == 1


def test_the_last_of_a_limit_is_not_given_in_advance() -> None:
    pool = Allowances()
    assert ask(pool, "a", 0, statement(600, need=1, ahead=10))[0] == 11
    assert ask(pool, "b", 0, statement(19, need=1, ahead=10))[0] == 1  # of 7 left after that, an eighth is no whole one


def test_a_statement_that_comes_twice_or_late_counts_once() -> None:
    pool = Allowances()
    first = statement(10, uses=(Use(60, 4),))
    ask(pool, "a", 0, first, 1)
    ask(pool, "a", 0, first, 1)
    assert ask(pool, "a", 1, statement(10, uses=(Use(59, 4),), need=6), 2)[0] == 6
    assert ask(pool, "a", 1, first, 1)[0] == 0  # an older one
    assert ask(pool, "b", 1, statement(10, need=1))[0] == 0


def test_what_a_silent_replica_held_is_free_again_and_what_it_used_still_counts() -> None:
    pool = Allowances()
    ask(pool, "a", 0, statement(10, uses=(Use(60, 3),), held=5))
    assert ask(pool, "b", GONE_AFTER_S, statement(10, need=10))[0] == 2
    assert ask(pool, "b", GONE_AFTER_S + 0.1, statement(10, need=10), 2)[0] == 7


def test_the_pool_forgets_accounts_that_are_not_in_use() -> None:
    pool = Allowances()
    ask(pool, "a", 0, statement(10, uses=(Use(60, 3),)))
    pool.forget(59)
    assert pool.accounts == 1
    pool.forget(60)
    assert pool.accounts == 0


def test_a_restarted_pool_hears_all_from_the_next_statements() -> None:
    alice = Allowance(REQUESTS, 5, replicas=1)
    before = Allowances()
    for at in range(5):
        (grant,) = before.lease("a", at, [alice.statement(1, 1, at)], at)
        alice.granted(grant, at)
        assert take(alice, 1, at)
        alice.use(1, at, MINUTE_S, held=1)
    after = Allowances()
    (grant,) = after.lease("a", 5, [alice.statement(1, 1, 5)], 5)
    assert (grant.lease, grant.retry_s) == (0, 55)


def test_a_dollar_is_given_out_in_cents_to_the_last() -> None:
    pool, usd = Allowances(), Allowance(Account("alice", "agent_usd_per_day"), 1.0, replicas=1)
    got = 0
    for number in range(300):
        (grant,) = pool.lease("a", number, [usd.statement(0.01, 0.01, 0.0)], 0.0)
        usd.granted(grant, 0.0)
        if take(usd, 0.01, 0.0):
            got += 1
            usd.use(0.01, 0.0, 3600.0, held=0.01)
    assert got == 100


def test_without_the_pool_each_replica_keeps_to_its_part() -> None:
    replicas = [Allowance(REQUESTS, 10, replicas=2) for _ in range(2)]
    assert [sum(take_alone(each, 1, 0.0) for _ in range(20)) for each in replicas] == [5, 5]


def test_without_the_pool_the_last_that_was_known_of_the_others_counts() -> None:
    pool, here = Allowances(), Allowance(REQUESTS, 10, replicas=2)
    pool.lease("b", 1, [statement(10, uses=(Use(60, 8),))], 0.0)
    (grant,) = pool.lease("a", 1, [here.statement(0, 1, 0.0)], 0.0)
    here.granted(grant, 0.0)
    assert sum(take_alone(here, 1, 2.0) for _ in range(20)) == 2


def test_a_limit_of_one_lets_each_replica_have_one_without_the_pool() -> None:
    assert take_alone(Allowance(REQUESTS, 1, replicas=2), 1, 0.0)


@pytest.mark.parametrize("usd_per_day", [0.5, 1.0, 2.0, 10.0])
@pytest.mark.parametrize("limit", ["agent_usd_per_day", "agent.usd_per_day"])
def test_without_the_pool_all_replicas_together_spend_a_days_dollars_and_no_more(
    limit: str, usd_per_day: float
) -> None:
    replicas = [Allowance(Account("", limit), usd_per_day, replicas=4) for _ in range(4)]
    spent = [sum(take_alone(each, 0.005, 0.0) for _ in range(4000)) * 0.005 for each in replicas]
    assert spent == [pytest.approx(usd_per_day / 4, abs=0.006)] * 4
    assert sum(spent) <= usd_per_day + 1e-9


def test_a_lease_ends_after_a_second() -> None:
    here = Allowance(REQUESTS, 600, replicas=2)
    (grant,) = Allowances().lease("a", 1, [here.statement(3, 1, 0.0)], 0.0)
    here.granted(grant, 0.5)
    assert take(here, 1, LEASE_S)
    assert not take(here, 1, LEASE_S + 0.01)


@dataclass
class Fleet:
    """Replicas that ask one pool, on one clock; each has at most one statement under way."""

    most: float
    replicas: list[Allowance] = field(init=False)
    pool: Allowances = field(default_factory=Allowances)
    number: int = 0
    let_in: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.replicas = [Allowance(REQUESTS, self.most, replicas=3) for _ in range(3)]

    def arrive(self, at: int, now_s: float, answer: str) -> float | None:
        """One request; returns when it may come again, None if it was let in."""
        here = self.replicas[at]
        if not take(here, 1, now_s):
            self.number += 1
            given = here.statement(1, 1, now_s)
            grants = self.pool.lease(str(at), self.number, [given], now_s)
            if answer == "lost":
                here.lost()
                return math.inf
            here.granted(grants[0], now_s)
            if not take(here, 1, now_s):
                retry_s = here.retry_s(now_s)
                return math.inf if retry_s is None else retry_s
        here.use(1, now_s, MINUTE_S, held=1)
        self.let_in.append(now_s)
        return None

    def worst_minute(self) -> int:
        return max((sum(each - MINUTE_S < one <= each for one in self.let_in) for each in self.let_in), default=0)


arrivals = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.floats(0, 3).map(lambda each: round(each, 3)),
        st.sampled_from(("given", "given", "given", "lost")),
    ),
    max_size=250,
)


@settings(deadline=None)
@given(most=st.integers(1, 200), arrivals=arrivals)
def test_no_minute_has_more_than_the_limit(most: int, arrivals: list[tuple[int, float, str]]) -> None:
    fleet, now_s = Fleet(most), 0.0
    for at, after_s, answer in arrivals:
        now_s += after_s
        fleet.arrive(at, now_s, answer)
    assert fleet.worst_minute() <= most


@settings(deadline=None)
@given(most=st.integers(1, 100), arrivals=arrivals)
def test_who_waits_as_long_as_it_was_told_is_let_in(most: int, arrivals: list[tuple[int, float, str]]) -> None:
    fleet, now_s = Fleet(most), 0.0
    for at, after_s, _ in arrivals:
        now_s += after_s
        retry_s = fleet.arrive(at, now_s, "given")
        if retry_s is not None and retry_s < math.inf:
            now_s += retry_s
            assert fleet.arrive(at, now_s, "given") is None


@settings(deadline=None)
@given(most=st.integers(60, 600), busy=st.integers(0, 2))
def test_one_busy_replica_gets_all_but_what_others_took_in_advance(most: int, busy: int) -> None:
    fleet = Fleet(most)
    for at in range(3):
        fleet.arrive(at, 0.0, "given")
    taken = sum(fleet.arrive(busy, 2.0, "given") is None for _ in range(2 * most))
    assert 3 + taken >= most - 2 * (most // 60)
    for at in range(3):  # each says again what it needs, which is nothing
        fleet.pool.lease(str(at), fleet.number + 1, [fleet.replicas[at].statement(0, 1, 3.0)], 3.0)
    taken += sum(fleet.arrive(busy, 3.0, "given") is None for _ in range(2 * most))
    assert 3 + taken == most


@settings(deadline=None)
@given(
    most=st.integers(1, 20),
    steps=st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.floats(0, 0.5)), max_size=200),
)
def test_never_more_are_open_than_may_be(most: int, steps: list[tuple[int, bool, float]]) -> None:
    fleet, now_s = Fleet(most), 0.0
    for at, opens, after_s in steps:
        now_s += after_s
        here = fleet.replicas[at]
        if not opens:
            if here.held:
                here.give_back(1)
        elif not take(here, 1, now_s):
            fleet.number += 1
            (grant,) = fleet.pool.lease(str(at), fleet.number, [here.statement(1, 1, now_s)], now_s)
            here.granted(grant, now_s)
            take(here, 1, now_s)
        for other in fleet.replicas:  # as each does twice a second
            if other is not here and other.is_due(now_s) and after_s > 0.25:
                fleet.number += 1
                place = str(fleet.replicas.index(other))
                (grant,) = fleet.pool.lease(place, fleet.number, [other.statement(0, 1, now_s)], now_s)
                other.granted(grant, now_s)
        assert sum(each.held for each in fleet.replicas) <= most


@settings(deadline=None)
@given(
    most=st.integers(10, 1000),
    takes=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 400), st.integers(0, 400)), max_size=60),
)
def test_tokens_beyond_what_was_held_are_counted_and_only_they_exceed_the_limit(
    most: int, takes: list[tuple[int, int, int]]
) -> None:
    fleet, beyond = Fleet(most), 0
    for step, (at, estimate, used) in enumerate(takes):
        here, now_s = fleet.replicas[at], step * 0.1
        fleet.number += 1
        (grant,) = fleet.pool.lease(str(at), fleet.number, [here.statement(estimate, 1, now_s)], now_s)
        here.granted(grant, now_s)
        hold = min(estimate, math.floor(here.free(now_s)))
        if hold < 1:
            continue
        assert take(here, hold, now_s)
        here.use(used, now_s, MINUTE_S, held=min(hold, used))
        here.give_back(hold - min(hold, used))
        beyond += max(0, used - hold)
    assert sum(each.used(0.0) for each in fleet.replicas) <= most + beyond
