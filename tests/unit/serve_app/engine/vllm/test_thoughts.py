"""Clients of /api/inference get an answer without the model's thoughts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from serve_app.engine.interface import Token
from serve_app.engine.vllm.thoughts import AnswerTokens

END = 9


class Parser:
    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        return END in input_ids

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Sequence[int]) -> bool:
        assert input_ids[-len(delta_ids) :] == delta_ids
        return END in delta_ids


def tokens(*ids: int) -> list[Token]:
    return [Token(str(token_id), token_id, None, False) for token_id in ids]


@pytest.mark.parametrize("items", [[[1, 2, END, 3, 4]], [[1], [2, END], [3], [4]], [[1, 2], [END], [3, 4]]])
def test_tokens_up_to_the_end_of_the_thoughts_are_left_out_however_they_come(items: list[list[int]]) -> None:
    answer = AnswerTokens(Parser(), [5, 6])
    assert [token.token_id for ids in items for token in answer.of(tokens(*ids))] == [3, 4]


def test_an_answer_that_never_stops_thinking_is_empty() -> None:
    answer = AnswerTokens(Parser(), [5])
    assert answer.of(tokens(1, 2, 3)) == []


def test_a_chat_template_may_end_the_thoughts_in_the_prompt() -> None:
    assert AnswerTokens(Parser(), [5, END]).of(tokens(1, 2)) == tokens(1, 2)


def test_a_model_without_a_parser_does_not_think() -> None:
    assert AnswerTokens(None, [5]).of(tokens(1, END, 2)) == tokens(1, END, 2)
