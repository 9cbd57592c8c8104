"""How many tokens a text has at least and at most. `tests/integration/libraries/` holds it against real tokenizers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.tokens import Tokens, likely_tokens, tokens_of


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("", 1),
        ("12345678", 13),
        ("日本語", 7),
        ("Москва", 13),
        ("สวัสดี", 19),
        ("😀😀", 9),
        ("{}[];", 6),
    ],
)
def test_a_character_counts_by_its_script(text: str, most: int) -> None:
    assert tokens_of(text).most == most


def test_english_has_about_two_characters_a_token_at_most() -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 100
    assert 1.8 < len(text) / tokens_of(text).most < 3


def test_a_token_is_likely_four_latin_letters_and_most_of_a_cjk_character() -> None:
    assert likely_tokens("abcd" * 10) == 10
    assert likely_tokens("天" * 40) == 30


def test_spaces_count_for_nothing_at_least() -> None:
    assert tokens_of(" \n\t" * 1000).least == 0


def test_half_of_a_surrogate_pair_is_counted_too() -> None:
    assert tokens_of("\ud83d").most >= 3


@given(st.text(), st.text())
def test_a_longer_text_has_no_fewer_tokens(text: str, more: str) -> None:
    short, long = tokens_of(text), tokens_of(text + more)
    assert 0 <= short.least <= short.most
    assert (long.least, long.most) >= (short.least, short.most)
    assert Tokens(1, 2).plus(short) == (1 + short.least, 2 + short.most)
