"""Admission: how many sequences each ingress replica may have open at a tier. Decided before anything is sent.

Serve's own bound (`max_queued_requests` of a deployment) is checked when a request comes, and what a replica then sends
back is queued again without it: of 250 streams at once it let 131 in where 96 may. So it is not set, and the count is
kept here, where nothing happens between looking and taking.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from router.registry import Tier, TierName
from serve_app.api.errors import ApiError, overloaded
from serve_app.pool.view import PoolView


class Admission:
    """What this ingress replica has open at each tier.

    A tier has room for `max_ongoing_requests` at each running replica and `max_queued_requests` beyond; a tier of which
    nothing is open takes any request, which is what wakes it.

    Args:
        tiers: the registry.
        pool: knows how many replicas run.
        retry_after_s: `Retry-After` of refusals, s.
    """

    def __init__(self, tiers: Mapping[TierName, Tier], pool: PoolView, retry_after_s: int) -> None:
        self._tiers = tiers
        self._pool = pool
        self._retry_after_s = retry_after_s
        self._open: Counter[TierName] = Counter()

    def take(self, tier: TierName, sequences: int) -> Callable[[], None]:
        """Take room for a request of so many sequences.

        Returns:
            what gives the room back, to be called once.

        Raises:
            ApiError: 503, the tier is full.
        """
        settings, running = self._tiers[tier], self._pool.observation.tier(tier).running
        room = running * settings.max_ongoing_requests + settings.max_queued_requests
        if self._open[tier] and self._open[tier] + sequences > room:
            raise self.full(tier)
        self._open[tier] += sequences

        def give_back() -> None:
            self._open[tier] -= sequences

        return give_back

    def full(self, tier: TierName) -> ApiError:
        """The error of a tier that has no room."""
        return overloaded(f"tier {tier} has too many requests waiting", self._retry_after_s)
