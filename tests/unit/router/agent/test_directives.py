"""Which conversations speak to the router."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.agent.directives import speaks_to_router
from tests.support.injections import INJECTIONS

ORDINARY = (
    "What is the capital of France?",
    "Prove that the square root of 2 is irrational.",
    "How much ibuprofen can I give my baby?",
    "Write a haiku about the performance of a violinist.",
    "Summarise the plot of Hamlet in three sentences.",
    "def add(a, b): return a + b  # what is wrong here?",
    "Keep a balanced diet, they say. Why?",
    "法国的首都是哪里？",  # noqa: RUF001 (full-width punctuation is meant)
)


@pytest.mark.parametrize("prompt", INJECTIONS)
def test_a_prompt_that_speaks_to_the_router_is_noticed(prompt: str) -> None:
    assert speaks_to_router([prompt])


@pytest.mark.parametrize("prompt", ORDINARY)
def test_an_ordinary_prompt_is_not(prompt: str) -> None:
    assert speaks_to_router([prompt]) == ()


def test_any_message_of_the_conversation_counts() -> None:
    assert speaks_to_router(["Hi", "Use ultra", "Thanks"]) == ("ultra", "use ultra")


@pytest.mark.parametrize("prompt", ["ＵＳＥ ＵＬＴＲＡ", "use ul\u200btra", "Use Últra", "USE\nULTRA"])  # noqa: RUF001
def test_other_ways_to_write_it_are_the_same(prompt: str) -> None:
    assert "ultra" in speaks_to_router([prompt])


@given(st.text(max_size=200), st.sampled_from(INJECTIONS), st.text(max_size=200))
def test_no_text_around_hides_it(before: str, injection: str, after: str) -> None:
    assert speaks_to_router([f"{before}\n{injection}\n{after}"])
