"""Lettered options are counted however they are written, and by their order only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.difficulty.answer_form import MOST_OPTIONS, answer_form, count_options
from router.difficulty.folding import latin_bytes


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


def test_the_count_has_an_end() -> None:
    text = "".join(f"\n{chr(ord('a') + index)}) x" for index in range(26))
    assert count_options(latin_bytes(text)) == MOST_OPTIONS


@given(st.text())
def test_any_text_has_a_count(text: str) -> None:
    assert count_options(latin_bytes(text)) in {0, *range(2, MOST_OPTIONS + 1)}


def test_the_form_of_answer_is_a_choice_where_there_are_options_else_code_or_text() -> None:
    assert answer_form("general_reasoning", 2) == "either_or"
    assert answer_form("code", 3) == "either_or"
    assert answer_form("code", 4) == "choice"
    assert answer_form("code", 0) == "code"
    assert answer_form("math", 0) == "text"
