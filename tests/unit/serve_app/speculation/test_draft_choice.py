"""Own drafts are given up when they are surely under their floor, and come back when told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.tiers import Drafts
from serve_app.speculation.draft_choice import DraftChoice, highest_likely_rate
from serve_app.speculation.settings import FallbackSettings

SETTINGS = FallbackSettings(min_tokens=1000, z=3)
FLOOR = 0.2
totals = st.integers(1, 100_000).flatmap(lambda drafted: st.tuples(st.just(drafted), st.integers(0, drafted)))


def test_poor_drafts_are_given_up_with_the_reason_in_words() -> None:
    choice = DraftChoice().after(2431, 194, FLOOR, SETTINGS)
    assert choice.drafts == "ngram"
    assert choice.reason == "acceptance of the own drafts, 0.080 over 2,431 tokens is under the floor 0.2"


def test_drafts_that_may_be_poor_by_chance_are_kept() -> None:
    # 0.18 is 1.6 standard deviations under 0.2 with 1,000 tokens, and 5 with 10,000.
    assert DraftChoice().after(1000, 180, FLOOR, SETTINGS).drafts == "own"
    assert DraftChoice().after(10_000, 1800, FLOOR, SETTINGS).drafts == "ngram"


def test_the_highest_likely_rate_is_wilsons_upper_bound() -> None:
    # By hand: (0.1 + 9/200 + 3 sqrt(0.09/100 + 9/40000)) / (1 + 9/100).
    assert highest_likely_rate(100, 10, 3) == pytest.approx(0.225343, abs=1e-6)
    assert highest_likely_rate(100, 10, 0) == pytest.approx(0.1)
    assert highest_likely_rate(10, 10, 3) == pytest.approx(1)


@given(totals, st.floats(0, 1))
def test_drafts_at_or_over_the_floor_are_never_given_up(total: tuple[int, int], floor: float) -> None:
    drafted, accepted = total
    if accepted / drafted >= floor:
        assert DraftChoice().after(drafted, accepted, floor, SETTINGS) == DraftChoice()


@given(st.integers(0, SETTINGS.min_tokens - 1))
def test_nothing_is_judged_before_enough_was_seen(drafted: int) -> None:
    assert DraftChoice().after(drafted, 0, 1.0, SETTINGS) == DraftChoice()


@given(totals, st.floats(0, 1))
def test_n_gram_drafts_stay_until_somebody_says_otherwise(total: tuple[int, int], floor: float) -> None:
    gone = DraftChoice("ngram", "poor")
    assert gone.after(*total, floor, SETTINGS) == gone


@pytest.mark.parametrize("drafts", ["own", "ngram"])
@pytest.mark.parametrize("before", [DraftChoice(), DraftChoice("ngram", "poor")])
def test_what_is_told_is_done(before: DraftChoice, drafts: Drafts) -> None:
    assert before.told(drafts) == DraftChoice(drafts, "told to")


def test_own_drafts_that_were_asked_back_are_judged_by_what_they_do_then() -> None:
    back = DraftChoice("ngram", "poor").told("own")
    assert back.after(0, 0, FLOOR, SETTINGS) == back
    assert back.after(2000, 900, FLOOR, SETTINGS) == back
    assert back.after(2000, 10, FLOOR, SETTINGS).drafts == "ngram"
