"""The features of a text, against counts by hand and for any text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.difficulty.features import (
    MOST_OPTIONS,
    Features,
    answer_form,
    count_options,
    features,
    folded_words,
    latin_bytes,
)
from router.difficulty.rules import load_rules


def form(text: str) -> Features:
    latin = latin_bytes(text)
    return features(latin, folded_words(latin), "general_reasoning", load_rules().function_words)


def test_every_feature_is_what_it_says() -> None:
    found = form("The sum:\n\n x1 = 12 + (30) \n")  # words: the sum x1 12 30
    assert found.word_length == pytest.approx(12 / 5)
    assert found.short_words == pytest.approx(3 / 5)
    assert found.function_words == pytest.approx(1 / 5)
    assert found.digits == pytest.approx(5 / 27)
    assert found.numbers == pytest.approx(math.log2(4))
    assert found.operators == pytest.approx(math.log2(3))
    assert found.symbols == pytest.approx(4 / 27)
    assert found.lines == pytest.approx(math.log2(3))


def test_an_empty_text_has_features() -> None:
    assert form("") == Features(0, 0, 0, 0, 0, 0, 0, 0, 0, "text")


@given(st.text())
def test_any_text_has_finite_features_and_shares_within_0_and_1(text: str) -> None:
    found = form(text)
    assert all(math.isfinite(value) and value >= 0 for value in found[:-1])
    assert all(share <= 1 for share in (found.short_words, found.function_words, found.digits, found.symbols))
    assert found == form(text)


@given(st.text(st.characters(max_codepoint=127)))
def test_capital_letters_change_no_feature(text: str) -> None:
    assert form(text.upper()) == form(text)


@given(st.text(st.characters(max_codepoint=127), min_size=1))
def test_a_text_that_is_repeated_has_the_same_shares(text: str) -> None:
    once, twice = form(text + "\n"), form((text + "\n") * 2)
    for feature in ("word_length", "short_words", "function_words", "digits", "symbols"):
        assert getattr(twice, feature) == pytest.approx(getattr(once, feature))


# --- options and the form of the answer ---


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("Which is red?\nA. Grass\nB. Blood\nC. Snow", 3),
        ("Which is red?\na) grass\nb) blood", 2),
        ("Which is red?\n(A) grass\n(B) blood\n(C) snow\n(D) ink", 4),
        ("Which is red: (a) grass, (b) blood or (c) snow?", 3),
        ("A: grass\nB: blood\nWhich is red?", 2),
        ("Options: A. grass\nB. blood\nC. snow", 3),
        ("What is the capital of France?", 0),
        ("A. single heading\nand text", 0),
        ("B. b\nC. c\nD. d", 0),
        ("Steps:\n1. cut\n2. glue", 0),
        ("", 0),
    ],
)
def test_options_are_counted(text: str, options: int) -> None:
    assert count_options(latin_bytes(text)) == options
    assert count_options(latin_bytes(text.upper())) == options


def test_the_count_of_options_has_an_upper_bound() -> None:
    text = "".join(f"\n{chr(ord('a') + index)}) x" for index in range(26))
    assert count_options(latin_bytes(text)) == MOST_OPTIONS


@given(st.text())
def test_any_text_has_a_count_of_options(text: str) -> None:
    assert count_options(latin_bytes(text)) in {0, *range(2, MOST_OPTIONS + 1)}


def test_the_answer_is_a_choice_if_there_are_options_and_otherwise_code_or_text() -> None:
    assert answer_form("general_reasoning", 2) == "either_or"
    assert answer_form("code", 3) == "either_or"
    assert answer_form("code", 4) == "choice"
    assert answer_form("code", 0) == "code"
    assert answer_form("math", 0) == "text"
