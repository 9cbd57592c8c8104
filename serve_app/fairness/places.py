"""Bounded places, of which some are kept: an ingress replica's open requests, a tier's slots, an engine's seats.

One key alone could take them all, and whoever comes next would wait for one of its streams to end. So an eighth (and at
least one) is kept for keys that hold no more than so many, and a batch request leaves a quarter to all others. Where
nobody is asked for a key everybody may take every place, as nobody can be told from the others.
"""

from __future__ import annotations

from collections import Counter
from math import ceil
from typing import Final

from serve_app.fairness.claims import Claim

KEPT_PART: Final = 8
"""One of so many places is kept for keys that hold few."""
BATCH_PART: Final = 4
"""One of so many places is no batch request's. More than one of `KEPT_PART`: what others leave is not all that is free
at this moment, as they come and go."""


def kept(places: int) -> int:
    """Return how many of the places are kept for keys that hold no more: at least one; of one place none."""
    return max(1, places // KEPT_PART) if places > 1 else 0


def open_to(claim: Claim, held: int, places: int, wanted: int = 1) -> int:
    """Return how many places may be taken in all, by whomever, when a request of this claim has taken some.

    Args:
        claim: of the request.
        held: places that its tenant holds already.
        places: that there are.
        wanted: that it needs.
    """
    few = kept(places)
    if claim.batch:
        return places - (ceil(places / BATCH_PART) if places > 1 else 0)
    return places if claim.tenant is None or held + wanted <= few else places - few


class Holders:
    """Who holds how many of some places."""

    def __init__(self) -> None:
        self.all = 0
        """Places that are held."""
        self._by_tenant: Counter[str | None] = Counter()

    def of(self, claim: Claim) -> int:
        """Return how many places the claim's tenant holds."""
        return self._by_tenant[claim.tenant]

    def may_take(self, claim: Claim, places: int, wanted: int = 1) -> bool:
        """Return whether a request of this claim may take some more.

        Args:
            claim: of the request.
            places: that there are.
            wanted: that it needs.
        """
        return self.all + wanted <= open_to(claim, self.of(claim), places, wanted)

    def take(self, claim: Claim, wanted: int = 1) -> None:
        """Note that a request of this claim holds some more."""
        self.all += wanted
        self._by_tenant[claim.tenant] += wanted

    def free(self, claim: Claim, held: int = 1) -> None:
        """Note that it no longer does."""
        self.all -= held
        self._by_tenant[claim.tenant] -= held
        if not self._by_tenant[claim.tenant]:
            del self._by_tenant[claim.tenant]
