"""An API that keeps failing is left alone for a while."""

from __future__ import annotations

import pytest

from router.agent.pausing import Pausing
from router.agent.report import API_FAILURES, FALLBACK_CODES, Fallback, FallbackCode

DOWN = Fallback("overloaded", "no")


def test_so_many_failures_in_a_row_begin_a_pause_that_ends_by_itself() -> None:
    pausing = Pausing(after=3, pause_s=30)
    pausing.note(DOWN, 0)
    pausing.note(DOWN, 1)
    assert pausing.left_s(1) == 0
    pausing.note(DOWN, 2)
    assert pausing.left_s(2) == 30
    assert pausing.left_s(12) == 20
    assert pausing.left_s(32) == 0


def test_the_first_failure_after_a_pause_begins_the_next() -> None:
    pausing = Pausing(after=2, pause_s=30)
    for now_s in (0, 1):
        pausing.note(DOWN, now_s)
    pausing.note(DOWN, 40)
    assert pausing.left_s(40) == 30


def test_a_success_between_failures_forgets_them() -> None:
    pausing = Pausing(after=2, pause_s=30)
    pausing.note(DOWN, 0)
    pausing.note(None, 1)
    pausing.note(DOWN, 2)
    assert pausing.left_s(2) == 0


@pytest.mark.parametrize("code", sorted(set(FALLBACK_CODES) - API_FAILURES))
def test_what_says_nothing_of_the_api_begins_no_pause(code: FallbackCode) -> None:
    pausing = Pausing(after=1, pause_s=30)
    pausing.note(Fallback(code, "no"), 0)
    assert pausing.left_s(0) == 0
