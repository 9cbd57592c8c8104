"""Should the engine run without speculation? Judged by its latest steps.

An engine without speculation cannot be observed from one with it. But what it takes for a step is known: what K = 0
takes here, without drafting, in a graph (`Costs.off_s`). So the latest steps' tokens are put on such an engine.

It is compared with the better of what ran and K = 0 at every step, so that exploration alone never causes the advice.
Advice needs evidence: one standard error of the costs speaks for speculation, and only judgements in a row count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from serve_app.speculation.cost import CostTable

JUDGED_EVERY: Final = 32
"""Steps after which it is judged again."""
JUDGEMENTS: Final = 2
"""In a row that must speak for an engine without speculation before it is advised."""
_MOST_SEEN: Final = 256
"""Latest steps by which it is judged: text changes."""
WORTH: Final = 0.97
"""It is advised where it would take less than this part of the time."""
WITHDRAWN: Final = 1.0
"""The advice is withdrawn where it would take this part of the time or more."""


class SeenStep(NamedTuple):
    """A step, as far as the advice needs it."""

    decoding: int
    """Requests that decoded."""
    emitted: int
    """Output tokens."""
    prefill_tokens: int
    tokens: int
    """All batched tokens."""
    depth: int
    captured: bool


class Advisor:
    """Remembers the latest steps and what it advised."""

    def __init__(self) -> None:
        self._seen: deque[SeenStep] = deque(maxlen=_MOST_SEEN)
        self._due = JUDGED_EVERY
        self._in_a_row = 0
        self.reason: str | None = None
        """Why the engine should run without speculation; None: it should not, or too little is known."""

    def observe(self, step: SeenStep, table: CostTable) -> None:
        """Take in a step; now and then judge anew."""
        self._seen.append(step)
        self._due -= 1
        if self._due:
            return
        self._due = JUDGED_EVERY
        ratio = off_ratio(self._seen, table)
        self._in_a_row = self._in_a_row + 1 if ratio < WORTH else 0
        if ratio >= WITHDRAWN:
            self.reason = None
        elif self._in_a_row >= JUDGEMENTS:
            self.reason = f"lately an engine without speculation would have taken {ratio:.2f} of the time"


def off_ratio(steps: Iterable[SeenStep], table: CostTable) -> float:
    """Return the part of these steps' time that an engine without speculation would have taken, with a standard error
    on top. Infinite where the steps do not show it: nobody can tell what a draft costs that is always paid and not
    measured apart."""
    costs = table.costs
    if costs.facts.draft == "always" and not costs.apart:
        return float("inf")
    ours_s = plain_s = off_s = 0.0
    for step in steps:
        ours_s += costs.step_s(step.tokens, step.depth, step.captured)
        size = step.decoding
        if size:
            # Without speculation this step's tokens would have come in so many steps.
            alone = step.emitted / size
            alone_s = costs.alike_s(size, 0)
            plain_s += alone * alone_s
            error = table.error(costs.key(size, 0, costs.facts.captured(0, size, costs.k_max)))
            off_s += alone * (costs.off_s(size) + error * alone_s)
        if step.prefill_tokens:
            # Prompts take the same time on both.
            more_s = costs.piecewise.verify(size + step.prefill_tokens)
            more_s -= costs.in_graph.verify(size) if size else 0.0
            off_s += more_s
            plain_s += more_s
    return off_s / min(ours_s, plain_s) if plain_s else float("inf")
