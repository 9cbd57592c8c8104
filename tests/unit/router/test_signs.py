"""How an answer goes, told from its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.signs import NO_SIGNS, WINDOW, SignReader, Signs


def read(ids: Sequence[int], logprobs: Sequence[float | None] | None = None) -> Signs:
    reader = SignReader()
    for token_id, logprob in zip(ids, logprobs or [None] * len(ids), strict=True):
        reader.add(token_id, logprob, spec_accepted=False, spec_k=0)
    return reader.signs


def test_nothing_is_known_of_an_answer_that_has_not_begun() -> None:
    assert all(isnan(value) for value in (SignReader().signs.logprob, NO_SIGNS.first, NO_SIGNS.worst))
    assert NO_SIGNS.loop == 0


def test_log_probabilities_are_averaged_over_a_whole_window() -> None:
    short = read(range(WINDOW - 1), [-1.0] * (WINDOW - 1))
    assert isnan(short.logprob)
    whole = read(range(2 * WINDOW), [-1.0] * WINDOW + [-3.0] * WINDOW)
    assert (whole.first, whole.logprob, whole.worst) == pytest.approx((-1.0, -3.0, -3.0))


def test_the_worst_stays_when_the_answer_gets_better() -> None:
    signs = read(range(3 * WINDOW), [-1.0] * WINDOW + [-5.0] * WINDOW + [-0.5] * WINDOW)
    assert (signs.first, signs.worst, signs.logprob) == pytest.approx((-1.0, -5.0, -0.5))


def test_a_stretch_that_comes_again_and_again_is_a_loop_from_the_third_time_on() -> None:
    lead, phrase = [100, 101, 102], [7, 8, 7, 9, 10]
    assert read(lead + 2 * phrase).loop == 0, "the second time it may be a quotation"
    assert read(lead + 3 * phrase + [7]).loop == 15, "where it begins, the 7 before the last one looked like it"
    assert read(lead + 20 * phrase).loop == 99
    assert read(lead + 20 * phrase + [55]).loop == 0


def test_one_token_again_and_again_is_a_loop() -> None:
    assert read([1, 2, 3] + [4] * 50).loop == 50


def test_a_text_that_copies_a_part_of_itself_is_none() -> None:
    text = list(range(60))
    assert max(read((text + text)[:end]).loop for end in range(121)) == 0


@given(st.lists(st.integers(0, 3), max_size=80))
def test_a_loop_really_repeats_itself(ids: list[int]) -> None:
    loop = read(ids).loop
    end = ids[len(ids) - loop :]
    assert loop == 0 or any(end[period:] == end[:-period] and loop >= 3 * period for period in range(1, loop // 3 + 1))


def test_the_share_of_accepted_drafts_is_of_those_that_were_verified() -> None:
    reader = SignReader()
    # Steps of 4 drafts and of 1, of which 2 and none were accepted.
    for accepted, k in ((True, 4), (True, 4), (False, 4), (False, 1)):
        reader.add(1, None, accepted, k)
    assert reader.signs.acceptance == pytest.approx(2 / 5)
