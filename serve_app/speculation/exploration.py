"""What the controller may spend on finding out: when to probe again, how many requests, which other steps to try."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from math import log
from typing import Final, NamedTuple

from serve_app.speculation.allocation import Allocation
from serve_app.speculation.cost import Costs

FIRST_INTERVAL_STEPS: Final = 8
"""Fewest steps between two probes of a request."""
MOST_INTERVAL_STEPS: Final = 64
"""Most steps that failing probes of a request back off to (doubling each time)."""
SAVED_STEPS: Final = 1.5
"""Most unspent allowance that is kept for later, in times of a current step."""
MOST_SAVED: Final = 0.75
"""Of a step's time, what a full graph saves at most: as far as is hoped for before any ran."""
_HOPED_GAIN: Final = 1.03
"""Steps that were never measured are tried where they may be better by this factor."""
_DOUBT: Final = 0.3
"""Hoped for is a time at this part of the way from the least that they may take to what is predicted."""
_HOPED_PART: Final = 0.3
"""They may lose this part of the allowance: the rest is for probes."""
_NEAR: Final = 0.06
"""What drafting all alike may seem to lose, of a step, and still be tried as far as the allowance goes."""


class Backoff(NamedTuple):
    """Steps between probes: intervals double with every failure, up to a bound.

    Whatever the outcomes, two probes are at least the first interval apart.
    """

    first: int
    most: int
    interval: int
    """Current interval, steps."""
    due: int
    """Step from which on the next probe may be sent."""

    @classmethod
    def starting(cls, step: int, first: int = FIRST_INTERVAL_STEPS, most: int = MOST_INTERVAL_STEPS) -> Backoff:
        """Return the state of a request that begins at this step."""
        return cls(first, max(first, most), first, step + first)

    def probed(self, step: int) -> Backoff:
        """Return the state after a probe. Its outcome is not known yet, and may never be (no draft was found)."""
        return self._replace(due=step + self.interval)

    def failed(self, step: int) -> Backoff:
        """Return the state after a probe that failed: the next one waits twice as long."""
        interval = min(self.most, 2 * self.interval)
        return self._replace(interval=interval, due=step + interval)

    def succeeded(self, step: int) -> Backoff:
        """Return the state after a probe that succeeded: the intervals start over."""
        return self._replace(interval=self.first, due=step + self.first)


class Allowance(NamedTuple):
    """Seconds that may be lost to exploration: a share of the engine's time, saved up for a few steps at most.

    Bound: over any time, the expected loss is at most `share` of it plus `SAVED_STEPS` steps.
    """

    seconds: float

    def earned(self, step_s: float, share: float) -> Allowance:
        """Return the allowance after a step of that length."""
        return Allowance(min(SAVED_STEPS * step_s, self.seconds + share * step_s))

    def spent(self, seconds: float) -> Allowance:
        """Return the allowance after a loss, which it must cover. A gain costs nothing and earns nothing."""
        return Allowance(self.seconds - max(0.0, seconds))


def lost_s(allocation: Allocation, rate: float) -> float:
    """Return how much longer a step takes than its output would take at that rate of tokens/s, s; prefill apart."""
    return allocation.output / allocation.rate - allocation.output / rate


def graph_trial(
    uniforms: Sequence[Allocation], best: Allocation, size: int, costs: Costs, allowed_s: float
) -> Allocation | None:
    """Return a way to draft alike for all `size` requests that would be better than the best one if its graph saved as
    much as any graph may, and that loses no more than the allowed time if not. For as long as no graph has run."""
    least_s = costs.in_graph.at_knot_s[0]
    more_s = max(0.0, MOST_SAVED * (least_s + costs.piecewise_s) - costs.piecewise_s)
    for each in uniforms:
        if costs.facts.captured(each.depth, each.tokens, costs.k_max):
            hoped = each.score + size * log(each.seconds / max(each.seconds - more_s, 0.1 * each.seconds))
            if hoped > best.score and lost_s(each, best.rate) <= allowed_s:
                return each
    return None


def near_trial(uniforms: Sequence[Allocation]) -> Allocation | None:
    """Return the best way to draft alike for all if it seems hardly worse than no drafts, the first of `uniforms`: it
    may turn out to be better."""
    near = max(uniforms[1:], key=lambda each: each.score, default=None)
    return near if near is not None and lost_s(near, uniforms[0].rate) <= _NEAR * uniforms[0].seconds else None


def hopeful_trial(
    uniforms: Sequence[Allocation],
    best: Allocation,
    size: int,
    least_s: Callable[[Allocation], float | None],
    allowed_s: float,
) -> Allocation | None:
    """Return a way to draft alike for all `size` requests that was never measured, is predicted to be worse than the
    best one and may well be better: the one that loses least. What looks dear by mistake is never run otherwise.

    Args:
        uniforms: one number of draft tokens for all, from 0 up.
        best: the best allocation by prediction.
        size: all requests.
        least_s: returns the least time that such steps may take, s; None where they were measured.
        allowed_s: may be lost.
    """
    hopeful = []
    for each in uniforms:
        least = least_s(each)
        if least is not None and least < each.seconds:
            hoped_s = least + _DOUBT * (each.seconds - least)
            if each.score + size * log(each.seconds / hoped_s) > best.score + size * log(_HOPED_GAIN):
                hopeful.append(each)
    trial = min(hopeful, key=lambda each: lost_s(each, best.rate), default=None)
    return trial if trial is not None and lost_s(trial, best.rate) <= _HOPED_PART * allowed_s else None


StepTimes = Callable[[float, int], float]
"""From batched tokens and the deepest draft to the time of a step of requests that verify different numbers, s."""


class Probes(NamedTuple):
    """Probes that a step may carry."""

    requests: int
    """How many requests to probe."""
    tokens: int
    """Draft tokens of each."""
    lost_s: float
    """Time that they take, s."""


NO_PROBES = Probes(0, 0, 0.0)


def affordable_probes(requested: int, tokens: int, decided: Allocation, step_s: StepTimes, allowed_s: float) -> Probes:
    """Return as many of the requested probes of `tokens` draft tokens as the allowed time covers.

    All requests of the step share the draft work of a depth. So with a costly draft nothing is affordable for a while,
    and then many requests are probed together. Also, a graph may cover the step as decided, and none the step with
    probes.
    """
    depth = max(decided.iterations, tokens)

    def lost(count: int) -> float:
        return max(0.0, step_s(decided.tokens + count * tokens, depth) - decided.seconds)

    count = requested if lost(requested) <= allowed_s else bisect_right(range(1, requested), allowed_s, key=lost)
    return Probes(count, tokens, lost(count)) if count else NO_PROBES
