"""Answers are billed the joules that the counters show, at watts that are known when they end."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from sustainability.measured import Energy, EnergyLedger


def warm(watts: float = 300.0, seconds: float = 5.0) -> EnergyLedger:
    """A ledger that has seen so many seconds of work, which answers were billed for by the model."""
    ledger = EnergyLedger()
    assert ledger.bill(seconds, 0.0, seconds) is None
    ledger.observe(watts * seconds, 50.0, seconds, 1.0)
    return ledger


def busy_j(ledger: EnergyLedger, busy_s: float, engine_busy_s: float) -> float:
    joules = ledger.bill(busy_s, 0.0, engine_busy_s)
    assert joules is not None
    return joules.busy_j


def test_before_a_second_was_measured_answers_are_billed_by_the_model_and_take_their_joules_along() -> None:
    ledger = EnergyLedger()
    assert ledger.bill(0.5, 0.0, 0.5) is None
    ledger.observe(150.0, 0.0, 0.5, 0.5)
    assert ledger.bill(0.4, 0.0, 0.9) is None
    ledger.observe(150.0, 0.0, 0.5, 0.5)
    assert ledger.active_watts == pytest.approx(300)
    assert ledger.aside_j == pytest.approx(0.9 * 300)
    assert busy_j(ledger, 0.1, 1.0) == pytest.approx(30)


def test_what_the_engine_did_before_it_was_measured_is_nobodys() -> None:
    """Its first answer, which shows that it works: it was busy for 2 s, and no answer is billed for them."""
    ledger = EnergyLedger(busy_s=2.0, left_s=0.5)
    ledger.observe(300.0, 0.0, 1.0, 0.0)
    ledger.lose(0.5, 3.0)
    assert ledger.aside_j == 0
    assert busy_j(ledger, 1.0, 3.0) == pytest.approx(300)
    assert ledger.owed_j == pytest.approx(0)


def test_an_answer_pays_its_busy_time_at_the_watts_of_the_last_seconds_without_waiting() -> None:
    ledger = warm(300.0)
    assert busy_j(ledger, 0.4, 5.4) == pytest.approx(0.4 * 300)


def test_idle_time_is_billed_at_the_idle_watts() -> None:
    joules = warm().bill(0.1, 2.0, 5.1)
    assert joules is not None
    assert joules.idle_j == pytest.approx(2 * 50)


def test_without_idle_watts_the_idle_part_is_left_to_the_model() -> None:
    ledger = EnergyLedger()
    ledger.observe(600.0, 0.0, 2.0, 0.0)
    joules = ledger.bill(2.0, 1.0, 2.0)
    assert joules is not None
    assert joules.idle_j is None


def test_equal_answers_that_end_together_pay_the_same() -> None:
    ledger = warm()
    ledger.observe(8 * 2.0 * 200, 0.0, 16.0, 0.0)
    bills = [busy_j(ledger, 2.0, 21.0) for _ in range(8)]
    assert max(bills) == pytest.approx(min(bills))


def test_what_the_watts_were_wrong_by_is_paid_later_and_softly() -> None:
    ledger = warm(300.0)
    busy_s, bills = 5.0, []
    for _ in range(200):  # the work needs 200 W from now on, an answer a second
        busy_s += 1
        bills.append(busy_j(ledger, 1.0, busy_s))
        ledger.observe(200.0, 0.0, 1.0, 0.0)
    assert bills[0] == pytest.approx(300)
    assert bills[-1] == pytest.approx(200, rel=0.01)
    assert sum(bills) == pytest.approx(200 * 200, rel=0.01)
    assert max(abs(after - before) for before, after in pairwise(bills)) < 40


def test_busy_time_that_nobody_pays_for_takes_its_joules_along() -> None:
    ledger = warm(300.0)
    ledger.observe(3000.0, 0.0, 10.0, 0.0)
    ledger.lose(4.0, 15.0)
    assert busy_j(ledger, 6.0, 15.0) == pytest.approx(1800)
    ledger.lose(3.9, 15.0)  # an answer had paid too little in advance
    assert ledger.billed_j + ledger.aside_j + ledger.owed_j == pytest.approx(4500)


def test_an_answer_that_ends_while_nothing_can_be_read_is_billed_by_the_model_and_is_not_paid_for_by_others() -> None:
    ledger = warm(300.0)
    ledger.skip(2.0)
    assert ledger.bill(2.0, 0.0, 7.0, by_model=True) is None
    ledger.observe(300.0, 0.0, 1.0, 0.0)
    assert busy_j(ledger, 1.0, 8.0) == pytest.approx(300)


@pytest.mark.parametrize("seed", range(8))
def test_bills_and_what_was_set_aside_follow_the_counter(seed: int) -> None:
    """Many answers side by side, watts that change with the batch, clients that leave, readings once a second."""
    chance = random.Random(seed)
    ledger = EnergyLedger()
    owed: list[float] = []
    busy_s = left_s = read_s = joules = read_j = billed_j = 0.0
    measured = 0
    for _ in range(20000):
        if len(owed) < 32 and chance.random() < 0.3:
            owed.append(0.0)
        step_s = chance.uniform(0.01, 0.05)
        if owed:
            busy_s += step_s
            joules += step_s * (200 + 10 * len(owed)) * chance.uniform(0.9, 1.1)
            owed = [each + step_s / len(owed) for each in owed]
        if owed and chance.random() < 0.25:
            mine_s = owed.pop(chance.randrange(len(owed)))
            if chance.random() < 0.1:
                left_s += mine_s
            elif (bill := ledger.bill(mine_s, 0.0, busy_s)) is not None:
                billed_j += bill.busy_j
                measured += 1
        if busy_s - read_s > 1:
            ledger.observe(joules - read_j, 0.0, busy_s - read_s, 0.0)
            ledger.lose(left_s, busy_s)
            read_s, read_j = busy_s, joules
    under_way_j = sum(owed) * 300
    assert measured > 500
    assert billed_j == pytest.approx(ledger.billed_j)
    assert ledger.billed_j + ledger.aside_j + ledger.owed_j == pytest.approx(read_j)
    assert ledger.billed_j + ledger.aside_j + under_way_j == pytest.approx(joules, rel=0.01)
    assert ledger.aside_j < 0.15 * joules


def test_energies_of_several_answers_add_up_and_are_measured_where_all_are() -> None:
    assert Energy(1.0, 2.0).plus(Energy(3.0, 4.0)) == Energy(4.0, 6.0)
    assert Energy(1.0, 2.0).plus(Energy(3.0)) == Energy(4.0)
    assert Energy(1.0, 2.0).plus(Energy(reason="gone")) == Energy(reason="gone")
