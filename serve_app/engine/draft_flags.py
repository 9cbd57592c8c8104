"""Tells, for every engine step of a request, which of its tokens were drafted and accepted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class DraftFlags:
    """State of one stream.

    A step's tokens are its accepted drafts and then one that the target sampled. But the engine core cuts the last step
    at an end-of-sequence token and at `max_tokens`, and then the last token left may be a draft too: only the engine's
    count of accepted drafts, which comes with the last step, tells.
    """

    accepted: int = 0
    """Tokens so far that were drafted and accepted."""

    def step(self, tokens: int, engine_accepted: int | None) -> int:
        """How many of a step's tokens, from its first on, were drafted and accepted.

        Args:
            tokens: number of tokens that the step gave.
            engine_accepted: the engine's count for the whole request, those that it cut included; None: not told yet.
        """
        bound = tokens - 1 if engine_accepted is None else min(tokens, engine_accepted - self.accepted)
        count = max(0, bound)
        self.accepted += count
        return count
