"""Keeps a thinking model's thoughts out of the answer, where its chain entry names vLLM's `reasoning_parser`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from serve_app.engine.interface import Token


class ReasoningParser(Protocol):
    """What is used of vLLM's."""

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Return whether the thoughts are over after these tokens."""

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Sequence[int]) -> bool:
        """Return whether they are over with the newest of these tokens."""


class AnswerTokens:
    """Of one answer's tokens, those after the thoughts; all of them without a parser.

    Args:
        parser: of the model; None: it does not think.
        prompt_ids: tokens of the prompt, with which a chat template may end the thoughts.
        before: tokens of the answer before those of `of`.
    """

    def __init__(self, parser: ReasoningParser | None, prompt_ids: Sequence[int], before: Sequence[int] = ()) -> None:
        over = parser is None or parser.is_reasoning_end(prompt_ids)
        self._parser = None if over else parser
        self._thoughts: list[int] = []
        for token_id in before:
            self._is_answer(token_id)

    def of(self, tokens: list[Token]) -> list[Token]:
        """Return the part of the next tokens that is answer."""
        return [token for token in tokens if self._is_answer(token.token_id)]

    def _is_answer(self, token_id: int) -> bool:
        if self._parser is None:
            return True
        self._thoughts.append(token_id)
        if self._parser.is_reasoning_end_streaming(self._thoughts, [token_id]):
            self._parser = None
        return False
