"""The engine's steps that are scheduled and not done."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from router.registry import Drafts
from serve_app.speculation.batch import Reason

MOST_UNDER_WAY: Final = 64
"""Steps that are kept: far more than vLLM has under way (two with asynchronous scheduling, else one per pipeline
stage)."""


class StepUnderWay(NamedTuple):
    """One of them."""

    output: object
    """vLLM's scheduler output, by which it is known again."""
    began_s: float
    """Monotonic clock when scheduling began, s."""
    reasons: Mapping[str, Reason]
    """Why each request has as many drafts in it; none for a request that ends its prefill."""
    drafts: Drafts
    """Who made the drafts that it verifies."""


class StepsUnderWay:
    """Oldest first."""

    def __init__(self) -> None:
        self._steps: deque[StepUnderWay] = deque(maxlen=MOST_UNDER_WAY)

    def began(self, step: StepUnderWay) -> None:
        """A step was scheduled."""
        self._steps.append(step)

    def done(self, output: object) -> StepUnderWay | None:
        """The step of this output, forgotten with those before it, which will never be done; None: nobody knows it."""
        for position, step in enumerate(self._steps):
            if step.output is output:
                for _ in range(position + 1):
                    self._steps.popleft()
                return step
        return None
