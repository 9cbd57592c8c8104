"""A card's counter is divided among its engines, and no joule goes to two of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sustainability.cards import SILENT_S, Card

LIMIT_W = 400.0


def card_with(**parts: float) -> Card:
    """A card with engines that have joined at 10 s, when its counter was at 1000 J."""
    card = Card()
    for name, part in parts.items():
        card.join(name, part, busy_s=0.0, counter_j=1000.0, idle_watts=50.0, now_s=10.0)
    return card


def handed_out(card: Card) -> float:
    return sum(each.active_j + each.idle_j for each in card.engines.values()) + card.lost_j


def test_an_engine_alone_has_every_joule_and_idle_time_is_told_apart() -> None:
    card = card_with(a=1.0)
    # 4 s: 1 s idle at 50 W, 3 s busy at 300 W.
    assert card.report("a", 3.0, 1950.0, LIMIT_W, 14.0)
    assert card.engines["a"].idle_j == pytest.approx(50)
    assert card.engines["a"].active_j == pytest.approx(900)


def test_a_card_on_which_nothing_ran_gives_idle_joules_only_and_shows_its_idle_watts() -> None:
    card = card_with(a=1.0)
    card.report("a", 0.0, 1080.0, LIMIT_W, 11.0)
    assert (card.engines["a"].active_j, card.engines["a"].idle_j) == (0, 80)
    assert card.idle_watts == 80
    assert card.idle_is_measured


def test_active_joules_go_by_busy_time_and_idle_ones_by_the_parts_of_the_card() -> None:
    card = card_with(a=0.25, b=0.75)
    card.report("a", 2.0, 1500.0, LIMIT_W, 13.9)
    assert handed_out(card) == 0, "b has not reported yet"
    card.report("b", 1.0, 1600.0, LIMIT_W, 14.0)
    # Idle: half of the time a is not busy, of that three quarters b is not: 4 s * 0.5 * 0.75 * 50 W.
    idle_j = 75.0
    a, b = card.engines["a"], card.engines["b"]
    assert (a.idle_j, b.idle_j) == pytest.approx((idle_j / 4, idle_j * 3 / 4))
    assert (a.active_j, b.active_j) == pytest.approx((525 * 2 / 3, 525 / 3))
    assert handed_out(card) == pytest.approx(600)


def test_a_moment_of_work_does_not_pay_for_the_noise_of_a_long_rest() -> None:
    card = card_with(a=1.0)
    card.report("a", 0.001, 1100.0, LIMIT_W, 11.0)  # 50 J more than expected
    assert card.engines["a"].active_j == pytest.approx(0.001 * LIMIT_W)
    assert handed_out(card) == pytest.approx(100)


def test_busy_time_pays_at_least_what_the_idle_card_would_have_drawn() -> None:
    card = card_with(a=1.0)
    card.report("a", 0.5, 1030.0, None, 11.0)  # less than 50 W
    assert card.engines["a"].active_j == pytest.approx(25)
    assert handed_out(card) == pytest.approx(30)


def test_a_counter_that_was_set_back_counts_from_zero() -> None:
    card = card_with(a=1.0)
    card.report("a", 1.0, 1300.0, LIMIT_W, 11.0)
    card.report("a", 2.0, 40.0, LIMIT_W, 12.0)
    card.report("a", 3.0, 340.0, LIMIT_W, 13.0)
    assert handed_out(card) == pytest.approx(300 + 40 + 300)


def test_a_counter_that_jumps_is_not_believed() -> None:
    card = card_with(a=1.0)
    card.report("a", 1.0, 9e9, LIMIT_W, 11.0)
    card.report("a", 2.0, 9e9 + 300, LIMIT_W, 12.0)
    assert handed_out(card) == pytest.approx(300)


def test_the_others_pay_nothing_for_an_engine_that_died() -> None:
    card = card_with(a=0.5, b=0.5)
    for second in range(1, 4):  # both are busy all the time, at 400 W together
        card.report("a", float(second), 1000.0 + 400 * second, LIMIT_W, 10.0 + second)
        card.report("b", float(second), 1000.0 + 400 * second, LIMIT_W, 10.0 + second)
    before_j = card.engines["a"].active_j
    now_s = 13.0
    while "b" in card.engines:  # b has died; the card goes on with 400 W
        now_s += 1
        card.report("a", now_s - 10, 1000.0 + 400 * (now_s - 10), LIMIT_W, now_s)
    assert now_s - 13 == SILENT_S
    silent_j = 400 * SILENT_S
    assert card.engines["a"].active_j - before_j == pytest.approx(silent_j / 2)
    assert card.lost_j == pytest.approx(silent_j / 2)
    card.report("a", now_s - 9, 1000.0 + 400 * (now_s - 9), LIMIT_W, now_s + 1)
    assert card.engines["a"].active_j - before_j == pytest.approx(silent_j / 2 + 400)


def test_an_engine_that_was_taken_for_dead_joins_again_and_gets_nothing_twice() -> None:
    card = card_with(a=0.5, b=0.5)
    card.report("b", 0.0, 1100.0, LIMIT_W, 11.0)
    card.report("b", 0.0, 1600.0, LIMIT_W, 16.0)
    assert "a" not in card.engines
    assert not card.report("a", 3.0, 1700.0, LIMIT_W, 17.0)
    card.join("a", 0.5, 3.0, 1700.0, 50.0, 17.0)
    card.report("b", 0.0, 1800.0, LIMIT_W, 18.0)
    card.report("a", 3.5, 1800.0, LIMIT_W, 18.0)
    assert handed_out(card) == pytest.approx(800)


def test_an_engine_that_leaves_or_died_before_another_joins_leaves_nothing_to_the_others() -> None:
    for leaves in (True, False):
        card = card_with(a=0.5, b=0.5)
        for name in "ab":
            card.report(name, 1.0, 1400.0, LIMIT_W, 11.0)
        later_s = 11.0 if leaves else 15.9
        if leaves:
            card.leave("b")
        else:
            card.report("a", later_s - 10, 1400.0 + 400 * (later_s - 11), LIMIT_W, later_s)
        now_s = later_s + 1
        card.join("c", 0.5, 0.0, 1400.0 + 400 * (now_s - 11), 50.0, now_s)
        a_j = card.engines["a"].active_j
        card.report("a", now_s - 10, 1400.0 + 400 * (now_s - 11), LIMIT_W, now_s + 0.1)
        card.report("c", 0.0, 1400.0 + 400 * (now_s - 11), LIMIT_W, now_s + 0.1)
        grown_j = 400 * (now_s - 11)
        assert set(card.engines) == {"a", "c"}
        assert card.engines["a"].active_j - a_j == pytest.approx(grown_j / 2, rel=0.1), leaves


def test_what_the_card_drew_while_no_engine_was_on_it_is_nobodys() -> None:
    card = card_with(a=1.0)
    card.leave("a")
    card.join("b", 1.0, 0.0, 5000.0, 50.0, 100.0)
    card.report("b", 0.0, 5050.0, LIMIT_W, 101.0)
    assert handed_out(card) == pytest.approx(50)


def test_an_engine_that_loads_beside_an_idle_one_hardly_changes_its_idle_watts() -> None:
    card = card_with(a=0.5)
    counter_j = 1000.0
    for second in range(1, 20):
        counter_j += 60
        card.report("a", 0.0, counter_j, LIMIT_W, 10.0 + second)
    assert card.idle_watts == pytest.approx(60)
    for second in range(20, 25):
        counter_j += 300
        card.report("a", 0.0, counter_j, LIMIT_W, 10.0 + second)
    assert card.idle_watts < 90
    for second in range(25, 45):
        counter_j += 60
        card.report("a", 0.0, counter_j, LIMIT_W, 10.0 + second)
    assert card.idle_watts == pytest.approx(60, abs=1)


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["join", "report", "report", "report", "leave"]),
        st.sampled_from("abc"),
        st.floats(0.05, 3.0),  # time until then, s
        st.floats(0.0, 500.0),  # power meanwhile, W
        st.floats(0.0, 1.2),  # busy time of all over that time: reports are late, or count a little ahead
    ),
    max_size=60,
)


@given(OPERATIONS)
def test_whatever_engines_do_no_joule_is_given_twice_and_none_below_zero(operations: list[Any]) -> None:
    card, now_s, counter_j = Card(), 10.0, 1000.0
    busy_s = dict.fromkeys("abc", 0.0)
    gone_j = 0.0
    for what, name, passed_s, watts, share in operations:
        now_s += passed_s
        counter_j += watts * passed_s
        for each in busy_s:
            busy_s[each] += share * passed_s
        before = dict(card.engines)
        if what == "join":
            card.join(name, 0.5, busy_s[name], counter_j, 50.0, now_s)
        elif what == "report":
            card.report(name, busy_s[name], counter_j, LIMIT_W, now_s)
        else:
            card.leave(name)
        kept = {id(each) for each in card.engines.values()}
        gone_j += sum(each.active_j + each.idle_j for each in before.values() if id(each) not in kept)
        assert all(each.active_j >= 0 and each.idle_j >= 0 for each in card.engines.values())
        assert card.lost_j >= 0
        assert gone_j + handed_out(card) <= counter_j - 1000 + 1e-6
