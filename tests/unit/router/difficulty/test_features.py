"""The features of a text, against counts by hand and for any text."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.difficulty.features import FORM, GRAMS, READ_CHARS, features
from router.difficulty.pieces import Pieces, load_pieces

PIECES = Pieces({" red": 0, " wa": 1, "ter": 2, "?": 3, "<0xE6>": 4}, np.arange(10, dtype=np.float32).reshape(5, 2))


def form(text: str) -> dict[str, float]:
    return dict(zip(FORM, features(text, PIECES).form.tolist(), strict=True))


def test_words_are_pieces_or_cut_into_the_longest_ones() -> None:
    assert sorted(PIECES.rows("red water?").tolist()) == [0, 1, 2, 3]
    assert PIECES.rows("xred").tolist() == []
    assert PIECES.mean(np.array([0, 1])).tolist() == [1, 2]
    assert PIECES.mean(PIECES.rows("")).tolist() == [0, 0]


def test_another_script_has_the_bytes_that_are_pieces() -> None:
    assert "日".encode() == b"\xe6\x97\xa5"
    assert PIECES.rows("日").tolist() == [4]


def test_the_form_is_what_it_says() -> None:
    found = form("A) x1 = 12\n\nb) 3?")
    assert found["numbers"] == pytest.approx(math.log1p(3))
    assert found["lines"] == pytest.approx(math.log1p(2))
    assert found["options"] == 2
    assert found["digits"] == pytest.approx(4 / 17)
    assert found["questions"] == pytest.approx(math.log1p(1))
    assert found["ends with a question"] == 1
    assert found["word length"] == pytest.approx(11 / 6)


def test_a_script_is_recognised() -> None:
    assert form("東京へ")["cjk"] == pytest.approx(2 / 3)
    assert form("東京へ")["kana at all"] == 1
    assert form("서울")["hangul"] == 1
    assert form("été")["latin"] == pytest.approx(2 / 3)


@given(st.text())
def test_any_text_has_finite_features(text: str) -> None:
    found = features(text, load_pieces())
    assert np.isfinite(found.form).all()
    assert np.isfinite(found.pieces).all()
    assert found.grams.shape == (GRAMS,)
    assert float(found.grams @ found.grams) == pytest.approx(1 if found.grams.any() else 0, abs=1e-3)


@given(st.text(st.characters(max_codepoint=127)), st.sampled_from(["", ".", "!!!", " \n"]))
def test_capital_letters_and_the_mark_at_the_end_change_nothing(text: str, end: str) -> None:
    for one, other in zip(features(text, PIECES), features(text.upper() + end, PIECES), strict=True):
        assert one == pytest.approx(other)


def test_of_a_long_text_the_ends_are_read_and_the_whole_length_counts() -> None:
    ends = "water " * READ_CHARS
    one, other = (features(f"{ends}{middle}{ends}", PIECES) for middle in ("red red", "red ?ed"))
    assert one.grams.tolist() == other.grams.tolist()
    assert form(ends)["characters"] > form("water " * (READ_CHARS // 2))["characters"]
