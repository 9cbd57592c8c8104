"""What an engine step costs: the prediction that decisions use."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple


class StepCost(NamedTuple):
    """Predicted time of a step: verifying its tokens, and drafting for the next step.

        seconds = verify(tokens) + depth x (draft + draft per request x (requests - 1))

    `verify` is piecewise linear, increasing and convex: flat while the hardware waits for memory, steeper once it
    computes.
    """

    knots: tuple[float, ...]
    """Batched tokens at which the slope changes, ascending, starting at 1."""
    at_knot_s: tuple[float, ...]
    """Time of a step with as many tokens as each knot, s."""
    slope_s: tuple[float, ...]
    """Time per further token from each knot on, s."""
    draft_s: float
    """Time of one draft iteration for one request, s."""
    draft_request_s: float
    """Further time of a draft iteration per further request, s."""

    def at(self, tokens: float) -> tuple[float, float]:
        """Time of a step with that many batched tokens and no drafting, s, and the time of one token more, s."""
        index = max(0, bisect_right(self.knots, tokens) - 1)
        slope = self.slope_s[index]
        return self.at_knot_s[index] + slope * (tokens - self.knots[index]), slope

    def verify(self, tokens: float) -> float:
        """Time of a step with that many batched tokens and no drafting, s."""
        return self.at(tokens)[0]

    def draft(self, depth: int, requests: int) -> float:
        """Time of drafting `depth` tokens for each of the requests, s."""
        return depth * (self.draft_s + self.draft_request_s * max(0, requests - 1))
