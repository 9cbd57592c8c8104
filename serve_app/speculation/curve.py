"""What each further draft token of a request is worth, prepared for the allocation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf, log

_NOTHING = 1e-9
"""A gain below this counts as none."""


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """One level of acceptance; the requests that share it are one group. Compared by identity."""

    gains: tuple[float, ...]
    """Entry j: probability that draft tokens 0..j are all accepted."""
    output: tuple[float, ...]
    """Entry k: expected output tokens of a step with k draft tokens asked for."""
    log_output: tuple[float, ...]
    """Their logarithms."""
    critical: tuple[float, ...]
    """Entry k: the (k+1)-th draft token is worth verifying when what a request bears of the shared time of a step is
    more than this many times what a token costs. Never decreasing."""

    @classmethod
    def of(cls, gains: Sequence[float], share: float = 1.0) -> Curve:
        """From expected gains (not increasing).

        Args:
            gains: expected gain of each draft token in turn, given that drafts come.
            share: how often drafts come when asked for (0-1); n-gram drafts often find no match. A step without a
                draft costs no verification.
        """
        output = tuple([1 + share * total for total in accumulate(gains, initial=0.0)])
        critical, least = [], 0.0
        for k, gain in enumerate(gains):
            # Taking one more multiplies the output by 1 + share gain / output and the request's time by
            # 1 + share token / (shared + (1 + share k) token); equal at this ratio of shared to token.
            least = max(least, output[k] / gain - (1 + share * k)) if gain > _NOTHING else inf
            critical.append(least)
        return cls(tuple(gains), output, tuple([log(tokens) for tokens in output]), tuple(critical))
