"""A benchmark's template comes off; the task stays."""

from __future__ import annotations

import pytest

from bench.quality.bare_prompt import bare_prompt

CHOICE = (
    "Please read the following multiple-choice questions and provide the most likely correct answer based on the "
    "options given.\n\nContext: {}\n\nQuestion: Which is red?\n\nOptions: \nA. Grass\nB. Blood\n\n\n"
    "Provide the correct letter choice in \\boxed{{X}}, where X is the correct letter choice."
)


def test_a_question_keeps_its_options_without_the_benchmarks_instructions() -> None:
    assert bare_prompt(CHOICE.format("None")).split() == ["Which", "is", "red?", "A.", "Grass", "B.", "Blood"]


def test_a_question_keeps_its_context() -> None:
    assert bare_prompt(CHOICE.format("Blood is thick.")).startswith("Blood is thick.\n")


def test_the_templates_instructions_become_plain_words() -> None:
    bare = bare_prompt(
        "Generate an executable Python function generated from the given prompt. Question:\nAdd a and b."
    )
    assert bare.split("\n") == ["Write this in Python.", "", "Add a and b."]


@pytest.mark.parametrize("prompt", ["What is the capital of France?", "", "Translate to German.\n\nGood morning."])
def test_a_prompt_without_a_template_stays(prompt: str) -> None:
    assert bare_prompt(prompt) == prompt
