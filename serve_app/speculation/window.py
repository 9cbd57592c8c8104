"""Acceptance lately: draft tokens, and how many of them were accepted."""

from __future__ import annotations

from math import exp
from typing import NamedTuple


class Window(NamedTuple):
    """Both may be exponentially forgotten."""

    drafted: float = 0.0
    accepted: float = 0.0

    @property
    def rate(self) -> float:
        """Acceptance rate (0-1); 0 while empty."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def after(self, drafted: int, accepted: int, memory_tokens: float) -> Window:
        """With some more draft tokens; older ones fade by e in `memory_tokens` of them."""
        kept = exp(-drafted / memory_tokens)
        return Window(self.drafted * kept + drafted, self.accepted * kept + accepted)
