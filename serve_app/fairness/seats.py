"""In which order the requests of an engine get its seats, its memory and its time. Pure.

A seat is a place in the engine's batch. Each request has a rank, and a lower one goes first:

0   its key is not over its fair share of the engine's time, and holds few seats
1   its key is not over its fair share
2   its key is over it
3   batch

Kept seats (`places.py`) are for rank 0: the others get a seat only as long as enough are left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from serve_app.fairness.claims import Claim
from serve_app.fairness.places import kept, open_to

FIRST: Final = 0
_FAIR: Final = 1
_OVER: Final = 2
_BATCH: Final = 3


class Seating(NamedTuple):
    """Who goes first, and how many may sit."""

    ranks: Mapping[str, int]
    """By request id."""
    seats: int
    """Seats that may be taken before the next step, if they are given in the order of the ranks."""


def seating(
    seated: Sequence[tuple[str, Claim]],
    waiting: Sequence[tuple[str, Claim]],
    seats: int,
    over_share: Collection[str],
) -> Seating:
    """Return the order of an engine's requests.

    Args:
        seated: id and claim of each request that has a seat.
        waiting: of each that waits for one, in the order in which they came.
        seats: that the engine has.
        over_share: keys that are over their fair share of the engine's time.
    """
    few = kept(seats)
    held: Counter[str | None] = Counter()
    ranks: dict[str, int] = {}
    for request_id, claim in (*seated, *waiting):
        ranks[request_id] = _rank(claim, held[claim.tenant], few, over_share)
        held[claim.tenant] += 1
    taken = len(seated)
    holds = Counter(claim.tenant for _, claim in seated)
    for request_id, claim in sorted(waiting, key=lambda one: ranks[one[0]]):
        most = seats - few if ranks[request_id] == _OVER else open_to(claim, holds[claim.tenant], seats)
        if taken < most:
            taken += 1
            holds[claim.tenant] += 1
    return Seating(ranks, max(taken, len(seated)))


def _rank(claim: Claim, held: int, few: int, over_share: Collection[str]) -> int:
    if claim.batch:
        return _BATCH
    if claim.tenant is None:
        return FIRST
    if claim.tenant in over_share:
        return _OVER
    return FIRST if held < few else _FAIR
