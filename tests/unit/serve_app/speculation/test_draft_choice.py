"""Own drafts are given up when they are surely under their floor, and come back when told."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.registry import Drafts
from serve_app.speculation.draft_choice import DraftChoice
from serve_app.speculation.settings import FallbackSettings
from serve_app.speculation.window import Window

SETTINGS = FallbackSettings(min_tokens=1000, memory_tokens=1e9, run_tokens=1, z=3)
FLOOR = 0.2
totals = st.integers(1, 100_000).flatmap(lambda drafted: st.tuples(st.just(drafted), st.integers(0, drafted)))


def test_poor_drafts_are_given_up_with_the_reason_in_words() -> None:
    choice = DraftChoice().after(2431, 194, FLOOR, SETTINGS)
    assert choice.drafts == "ngram"
    assert choice.reason == "acceptance of the own drafts is 0.080 lately, under 0.2"


def test_drafts_that_may_be_poor_by_chance_are_kept() -> None:
    # 0.18 is 1.6 standard deviations under 0.2 with 1,000 tokens, and 5 with 10,000.
    assert DraftChoice().after(1000, 180, FLOOR, SETTINGS).drafts == "own"
    assert DraftChoice().after(10_000, 1800, FLOOR, SETTINGS).drafts == "ngram"


@given(totals, st.floats(0, 1))
@example((1618, 1618), 1.0)
def test_drafts_at_or_over_the_floor_are_never_given_up(total: tuple[int, int], floor: float) -> None:
    drafted, accepted = total
    if accepted / drafted >= floor:
        assert DraftChoice().after(drafted, accepted, floor, SETTINGS).drafts == "own"


@given(st.integers(0, SETTINGS.min_tokens - 1))
def test_nothing_is_judged_before_enough_was_seen(drafted: int) -> None:
    assert DraftChoice().after(drafted, 0, 1.0, SETTINGS).drafts == "own"


@given(totals, st.floats(0, 1))
def test_n_gram_drafts_stay_until_somebody_says_otherwise(total: tuple[int, int], floor: float) -> None:
    gone = DraftChoice("ngram", "poor")
    assert gone.after(*total, floor, SETTINGS) == gone


@pytest.mark.parametrize("drafts", ["own", "ngram"])
@pytest.mark.parametrize("before", [DraftChoice(), DraftChoice("ngram", "poor")])
def test_what_is_told_is_done(before: DraftChoice, drafts: Drafts) -> None:
    assert before.told(drafts) == DraftChoice(drafts, "told to")


def test_own_drafts_that_were_asked_back_are_judged_by_what_they_do_then() -> None:
    back = DraftChoice().after(999, 0, FLOOR, SETTINGS).told("own")
    assert back.own == Window()
    assert back.after(2000, 900, FLOOR, SETTINGS).drafts == "own"
    assert back.after(2000, 10, FLOOR, SETTINGS).drafts == "ngram"


def test_a_draft_that_was_good_for_long_and_breaks_is_given_up_within_its_memory() -> None:
    settings = FallbackSettings()
    choice = DraftChoice()
    for _ in range(10_000):
        choice = choice.after(100, 50, FLOOR, settings)
    broken = 0
    while choice.drafts == "own":
        choice = choice.after(100, 0, FLOOR, settings)
        broken += 100
    # Faded by e^-x, 0.5 is under 0.2 after ln(2.5) = 0.92 memories; a little more makes it sure.
    assert 0.92 * settings.memory_tokens <= broken <= 1.2 * settings.memory_tokens


def test_runs_of_drafts_are_single_trials() -> None:
    in_runs = FallbackSettings(min_tokens=1000, memory_tokens=1e9, run_tokens=10, z=3)
    assert DraftChoice().after(10_000, 1800, FLOOR, SETTINGS).drafts == "ngram"
    assert DraftChoice().after(10_000, 1800, FLOOR, in_runs).drafts == "own"
