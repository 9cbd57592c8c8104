"""The requests of a step, sorted by what is to be decided for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from serve_app.speculation.allocation import Allocation, Allocator, Fixed, Group, Load
from serve_app.speculation.request_state import RequestState
from serve_app.speculation.step_cost import StepCost


class Batch(NamedTuple):
    """A step's requests."""

    autos: Sequence[Sequence[RequestState]]
    """To decide: groups with the same curve."""
    asked: Sequence[RequestState]
    """With a k of their own."""
    stopped: Sequence[RequestState]
    """Stopped by tau."""
    allocator: Allocator
    size: int
    """All requests."""


def sort_batch(requests: Iterable[RequestState], prefill_tokens: int, cost: StepCost, share: float) -> Batch:
    """Sort the requests, and set up the search for what the auto requests get.

    Args:
        requests: those that decode.
        prefill_tokens: prompt tokens in the same step.
        cost: step times.
        share: how many of the asked draft tokens come (0-1).
    """
    groups: dict[int, list[RequestState]] = {}
    fixed: dict[tuple[int, int], Fixed] = {}
    asked: list[RequestState] = []
    stopped: list[RequestState] = []
    size = 0
    for request in requests:
        size += 1
        k = request.k
        if k != 0 and request.tau_state is not None and request.tau_state.stopped:
            stopped.append(request)
            k = 0
        elif k is None:
            same = groups.get(id(request.curve))
            if same is None:
                groups[id(request.curve)] = [request]
            else:
                same.append(request)
            continue
        else:
            asked.append(request)
        key = (id(request.curve), k)
        before = fixed.get(key)
        fixed[key] = Fixed(request.curve, 1 + (before.size if before else 0), k)
    autos = list(groups.values())
    allocator = Allocator(
        [Group.of(same[0].curve, len(same)) for same in autos], Load(prefill_tokens, list(fixed.values())), cost, share
    )
    return Batch(autos, asked, stopped, allocator, size)


def depths_of(batch: Batch, allocation: Allocation) -> Iterable[tuple[RequestState, int]]:
    """What the allocation gives each auto request."""
    for position, (group, k) in enumerate(zip(batch.autos, allocation.depths, strict=True)):
        if position == allocation.split:
            yield from [(request, k) for request in group[: allocation.more]]
            yield from [(request, k - 1) for request in group[allocation.more :]]
        else:
            yield from [(request, k) for request in group]
