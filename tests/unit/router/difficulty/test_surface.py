"""The outward form of a text, against what one counts by hand, and for any text at all."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.difficulty.folding import folded_words, latin_bytes
from router.difficulty.surface import Surface, surface


def form(text: str) -> Surface:
    latin = latin_bytes(text)
    return surface(latin, folded_words(latin), options=0, answer="text")


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


def test_an_empty_text_has_a_form() -> None:
    assert form("") == Surface(0, 0, 0, 0, 0, 0, 0, 0, 0, "text")


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
def test_a_text_said_twice_has_the_same_shares(text: str) -> None:
    once, twice = form(text + "\n"), form((text + "\n") * 2)
    for feature in ("word_length", "short_words", "function_words", "digits", "symbols"):
        assert getattr(twice, feature) == pytest.approx(getattr(once, feature))
