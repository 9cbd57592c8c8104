"""Shares of a step add up to it, equal requests get equal shares, and nothing is billed twice or forgotten."""

from __future__ import annotations

from math import fsum, isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sustainability.shares import IdleLedger, Ledger, StepParts, Totals, Work, step_shares

SECONDS = st.floats(0, 10)
TIMES = st.builds(StepParts, SECONDS, SECONDS, st.floats(0, 1))
BATCHES = st.dictionaries(st.sampled_from("abcdefgh"), st.builds(Work, st.integers(1, 500), st.integers(0, 8)))


def test_a_step_equals_shares_computed_by_hand() -> None:
    # Of 0.8 s of verifying, 0.2 s are fixed: 0.1 s each. The other 0.6 s go by 3 and 9 tokens; 0.1 s of drafting by 2
    # and 0 drafts.
    shares = step_shares(StepParts(0.8, 0.1, fixed=0.25), {"a": Work(3, 2), "b": Work(9)})
    assert shares == {"a": pytest.approx(0.1 + 0.15 + 0.1), "b": pytest.approx(0.1 + 0.45)}


@given(TIMES, BATCHES.filter(bool))
def test_shares_add_up_to_the_step_and_none_is_negative(time: StepParts, work: dict[str, Work]) -> None:
    shares = step_shares(time, work)
    assert isclose(fsum(shares.values()), time.verify_s + time.draft_s, abs_tol=1e-9)
    assert min(shares.values()) >= 0


@given(TIMES, st.builds(Work, st.integers(1, 500), st.integers(0, 8)), st.integers(1, 64))
def test_equal_requests_have_equal_shares(time: StepParts, work: Work, requests: int) -> None:
    shares = step_shares(time, {str(number): work for number in range(requests)})
    assert set(shares.values()) == {shares["0"]}


def test_who_drafts_nothing_pays_no_drafting_unless_nobody_drafted() -> None:
    assert step_shares(StepParts(0, 1.0), {"a": Work(4, 3), "b": Work(1)}) == {"a": 1.0, "b": 0.0}
    assert step_shares(StepParts(0, 1.0), {"a": Work(1), "b": Work(1)}) == {"a": 0.5, "b": 0.5}


def test_a_step_without_requests_has_no_shares() -> None:
    assert step_shares(StepParts(1.0, 1.0), {}) == {}


def test_a_bill_is_what_was_charged_since_the_last_one() -> None:
    ledger = Ledger()
    ledger.begin("a")
    ledger.charge({"a": 1.0})
    ledger.charge({"a": 2.0})
    assert (ledger.bill("a"), ledger.bill("a")) == (3.0, 0.0)
    ledger.charge({"a": 4.0})
    assert ledger.last_bill("a") == 4.0
    assert ledger.totals == Totals(busy_s=7.0)


def test_what_an_aborted_request_still_owes_and_its_later_steps_are_counted_as_left() -> None:
    ledger = Ledger()
    ledger.begin("a")
    ledger.charge({"a": 1.0})
    ledger.leave("a")
    ledger.charge({"a": 0.5})
    assert ledger.totals == Totals(busy_s=1.5, left_s=1.5)
    assert (ledger.bill("a"), ledger.last_bill("a")) == (0.0, 0.0)


def test_steps_that_had_begun_are_paid_in_advance_and_the_difference_is_late() -> None:
    ledger = Ledger()
    ledger.begin("a")
    ledger.charge({"a": 1.0})
    assert ledger.last_bill("a", steps=2, advance_s=0.6) == 1.6
    ledger.charge({"a": 0.25})
    ledger.charge({"a": 0.5})
    assert ledger.totals == pytest.approx((1.75, 0.0, 0.15))
    ledger.charge({"a": 1.0})  # no step of it was left
    assert ledger.totals.left_s == 1.0


@given(
    st.lists(st.tuples(st.sampled_from(["begin", "charge", "bill", "end", "leave"]), st.sampled_from("abc"), SECONDS))
)
def test_busy_time_is_what_was_billed_left_late_or_is_still_owed(acts: list[tuple[str, str, float]]) -> None:
    ledger, billed_s = Ledger(), 0.0
    for act, request, seconds in acts:
        if act == "begin":
            ledger.leave(request)  # ids are never used twice at once
            ledger.begin(request)
        elif act == "charge":
            ledger.charge({request: seconds})
        elif act == "bill":
            billed_s += ledger.bill(request)
        elif act == "end":
            billed_s += ledger.last_bill(request, steps=int(seconds), advance_s=seconds)
        else:
            ledger.leave(request)
    billed_s += sum(ledger.last_bill(request) for request in "abc")
    totals = ledger.totals
    assert isclose(totals.busy_s, billed_s + totals.left_s + totals.late_s, abs_tol=1e-6)


def test_the_first_answer_after_a_rest_pays_for_the_rest_and_the_next_one_no_more_of_it() -> None:
    ledger = IdleLedger()
    assert ledger.bill(1.0, engine_busy_s=1.0, up_s=401.0) == 400.0
    assert ledger.bill(1.0, engine_busy_s=2.0, up_s=402.0) == 0.0
    assert ledger.bill(1.0, engine_busy_s=3.0, up_s=413.0) == 10.0


def test_answers_side_by_side_pay_idle_time_by_their_busy_time() -> None:
    ledger = IdleLedger()
    # Two under way; the first to end has a quarter of the busy time so far.
    assert ledger.bill(1.0, engine_busy_s=4.0, up_s=12.0) == 2.0
    assert ledger.bill(3.0, engine_busy_s=4.0, up_s=12.0) == 6.0
    assert ledger.bill(0.0, engine_busy_s=4.0, up_s=20.0) == 0.0


@given(st.lists(st.tuples(SECONDS, SECONDS, st.floats(0, 1))))
def test_idle_time_is_billed_once_however_answers_come(steps: list[tuple[float, float, float]]) -> None:
    ledger, busy_s, up_s, billed_s = IdleLedger(), 0.0, 0.0, 0.0
    for more_busy_s, more_idle_s, part in steps:
        busy_s, up_s = busy_s + more_busy_s, up_s + more_busy_s + more_idle_s
        billed_s += ledger.bill(part * more_busy_s, busy_s, up_s)
    assert 0 <= billed_s <= up_s - busy_s + 1e-6
