"""vLLM's own reasoning parsers tell answers from thoughts as `AnswerTokens` needs it."""

from __future__ import annotations

import pytest

from serve_app.engine.interface import Token
from serve_app.engine.vllm.thoughts import AnswerTokens

THINK, THOUGHT = 1, 2
"""Ids of <think> and </think>."""


class Tokenizer:
    def get_vocab(self) -> dict[str, int]:
        return {"<think>": THINK, "</think>": THOUGHT}


@pytest.mark.usefixtures("vllm_installed")
@pytest.mark.parametrize("name", ["deepseek_r1", "qwen3"])
@pytest.mark.parametrize(
    ("prompt", "answer", "shown"),
    [
        ([7, THINK], [5, 6, THOUGHT, 8, 9], [8, 9]),
        ([7], [THINK, 5, 6, THOUGHT, 8, 9], [8, 9]),
        ([7, THINK, THOUGHT], [5, 8, 9], [5, 8, 9]),
    ],
    ids=["the template begins the thoughts", "the model begins them", "the template ends them"],
)
def test_thoughts_are_left_out(name: str, prompt: list[int], answer: list[int], shown: list[int]) -> None:
    from vllm.reasoning import ReasoningParserManager

    tokens = AnswerTokens(ReasoningParserManager.get_reasoning_parser(name)(Tokenizer()), prompt)
    found = [tokens.of([Token("", token_id, None, False)]) for token_id in answer]
    assert [token.token_id for each in found for token in each] == shown
