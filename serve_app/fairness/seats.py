"""In which order the requests of an engine get its seats, its memory and its time. Pure.

A seat is a place in the engine's batch. Each request that waits has a rank, and a lower one goes first:

0   its key is not clearly over its fair share of the engine's time, and holds few seats
1   its key is not over its fair share
2   its key is over it
3   batch

Of those that have a seat the last of the highest rank gives its memory back, if that is full. Only those that are
replaceable have one above 0: to send back whoever was there longest wastes most, so keys that hold one seat, or that
are over their share by little, are no better victims than others.

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
    """Who goes first, how many may sit, and who may be sent back."""

    ranks: Mapping[str, int]
    """By request id."""
    seats: int
    """Seats that may be taken before the next step, if they are given in the order of the ranks."""
    seatless: frozenset[str]
    """Waiting requests of the first rank whose keys hold no seat, or only batch: room may be made for them."""
    replaceable: frozenset[str]
    """Seated requests that may make room: batch, and those of keys over their share that hold several seats."""


def seating(
    seated: Sequence[tuple[str, Claim]],
    waiting: Sequence[tuple[str, Claim]],
    seats: int,
    over_share: Collection[str],
    settled: Collection[str] = (),
) -> Seating:
    """Return the order of an engine's requests.

    Args:
        seated: id and claim of each request that has a seat.
        waiting: of each that waits for one, in the order in which they came.
        seats: that the engine has.
        over_share: keys that are over their fair share of the engine's time.
        settled: seated requests that make room for nobody any more.
    """
    few = kept(seats)
    holds = Counter(claim.tenant for _, claim in seated)
    replaceable = frozenset(
        one
        for one, claim in seated
        if one not in settled and (claim.batch or (claim.tenant in over_share and holds[claim.tenant] > 1))
    )
    normal = {claim.tenant for _, claim in seated if not claim.batch}
    ranks = {one: _rank(claim, 0, few, over_share) if one in replaceable else FIRST for one, claim in seated}
    before = holds.copy()
    for one, claim in waiting:
        ranks[one] = _rank(claim, before[claim.tenant], few, over_share)
        before[claim.tenant] += 1
    taken = len(seated)
    for one, claim in sorted(waiting, key=lambda each: ranks[each[0]]):
        most = seats - few if ranks[one] == _OVER else open_to(claim, holds[claim.tenant], seats)
        if taken < most:
            taken += 1
            holds[claim.tenant] += 1
    seatless = frozenset(one for one, claim in waiting if ranks[one] == FIRST and claim.tenant not in normal)
    return Seating(ranks, taken, seatless, replaceable)


def _rank(claim: Claim, held: int, few: int, over_share: Collection[str]) -> int:
    if claim.batch:
        return _BATCH
    if claim.tenant is None:
        return FIRST
    if claim.tenant in over_share:
        return _OVER
    return FIRST if held < few else _FAIR
