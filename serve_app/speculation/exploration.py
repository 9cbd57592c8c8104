"""How many idle requests may be probed in a step, and whether that could lead to anything."""

from __future__ import annotations

from typing import NamedTuple

from serve_app.speculation.allocation import Allocation
from serve_app.speculation.step_cost import StepCost


class Probes(NamedTuple):
    """Probes that a step may carry."""

    requests: int
    """How many requests to probe."""
    tokens: int
    """Draft tokens of each."""
    lost_s: float
    """Time that they take, s."""


NO_PROBES = Probes(0, 0, 0.0)


def affordable_probes(
    wanted: int, tokens: int, decided: Allocation, requests: int, cost: StepCost, allowed_s: float
) -> Probes:
    """As many of the `wanted` probes of `tokens` draft tokens as the allowed time covers.

    The draft work of a depth is shared by all `requests` of the step, so with a costly draft nothing is affordable for
    a while, and then many requests are probed together.
    """
    fixed = cost.draft(max(decided.depth, tokens), requests) - cost.draft(decided.depth, requests)
    each = (cost.verify(decided.tokens + wanted * tokens) - cost.verify(decided.tokens)) / wanted
    if fixed + wanted * each <= allowed_s:
        return Probes(wanted, tokens, fixed + wanted * each)
    if fixed + each > allowed_s:
        return NO_PROBES
    # Not all fit, so each costs something.
    count = min(wanted, int((allowed_s - fixed) / each))
    return Probes(count, tokens, fixed + count * each)


def hopeful(probes: Probes, hope: float, rate: float) -> bool:
    """Whether drafts like these would pay if nearly all (`hope`) were accepted, at this rate of output tokens/s."""
    gain = sum([hope ** (position + 1) for position in range(probes.tokens)])
    return probes.requests * gain > rate * probes.lost_s
