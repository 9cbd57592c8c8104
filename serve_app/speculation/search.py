"""When to search for the best allocation, and when to go on with the prices that the last search found."""

from __future__ import annotations

from typing import NamedTuple

from serve_app.speculation.allocation import Allocation, Allocator
from serve_app.speculation.settings import AutoSettings

_SAME_TIME = 0.1
"""A search holds while the predicted step time differs from what it found by at most this share: for a fuller step, or
once the costs turned out to be others, it is made again."""


class Search(NamedTuple):
    """What the last search found.

    A search takes time by the kinds of requests in the batch, so with many of them it is made every few steps only.
    Between searches each request's draft tokens still follow its own acceptance; only the depth, what a token costs and
    what a saved step is worth are taken over, and these hardly change from one step to the next.
    """

    depth: int
    ratio: float
    """`Allocation.ratio`."""
    seconds: float
    """Predicted time of the step."""
    due: int
    """Step at which to search again, around this depth."""
    full_due: int
    """Step at which to search at all depths."""

    @classmethod
    def none(cls) -> Search:
        """Before the first."""
        return cls(0, 0.0, 0.0, 0, 0)

    def next(self, allocator: Allocator, kinds: int, step: int, settings: AutoSettings) -> tuple[Allocation, Search]:
        """The allocation for this step, and what to go on with."""
        if step < self.due:
            same = allocator.at(self.depth, self.ratio)
            if abs(same.seconds - self.seconds) <= _SAME_TIME * self.seconds:
                return same, self
        full = step >= self.full_due
        found = allocator.best(None if full else self.depth)
        return found, Search(
            depth=found.depth,
            ratio=found.ratio,
            seconds=found.seconds,
            due=step + 1 + kinds // settings.kinds_per_step,
            full_due=step + settings.search_steps if full else self.full_due,
        )
