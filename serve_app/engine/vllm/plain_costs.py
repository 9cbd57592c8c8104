"""What the steps of an engine without drafts cost, learned as those of an engine with drafts are (`cost.py`)."""

from __future__ import annotations

from typing import Final

from cluster.rate_limited_log import RateLimitedLog
from serve_app.speculation.cost import CostTable, StepTime
from serve_app.speculation.settings import EngineFacts
from sustainability.shares import StepParts

_NO_GRAPHS: Final = EngineFacts()


class PlainCosts:
    """Costs of steps. A fault ends no engine: it is logged, the step is divided equally, and learning begins anew.

    Args:
        log: takes the faults.
    """

    def __init__(self, log: RateLimitedLog) -> None:
        self._log = log
        self._table = CostTable(_NO_GRAPHS, k_max=0)

    def parts_of(self, seconds: float, tokens: int) -> StepParts:
        """Return the time of a step by its parts, and learn from it.

        Args:
            seconds: that it took.
            tokens: that it had.
        """
        try:
            self._table.observe(StepTime(seconds, tokens, captured=False, iterations=0))
            return StepParts(seconds, fixed=self._table.costs.fixed_part(tokens, captured=False))
        except Exception as error:  # noqa: BLE001 - see the class
            words = "the costs of steps are learned anew: %s: %s"
            self._log.warning("costs", words, type(error).__name__, error, error=error)
            self._table = CostTable(_NO_GRAPHS, k_max=0)
            return StepParts(seconds)

    def step_s(self, tokens: int) -> float:
        """Return the expected time of a step with so many tokens, s."""
        return self._table.costs.piecewise.verify(max(1, tokens))
