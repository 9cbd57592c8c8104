"""The slots of each tier: how many sequences this ingress replica may have open there.

The count is kept here because nothing happens between the check and the take. Serve checks its own bound
(`max_queued_requests` of a deployment) only when a request arrives, and not again when a full replica sends it back: of
250 streams at once it let in 131 where 96 may. So that bound is not set.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from router.registry import Tier, TierName
from serve_app.api.errors import ApiError, overloaded
from serve_app.fairness.claims import ANYBODY, Claim
from serve_app.fairness.places import Holders
from serve_app.pool.view import PoolView


class TierSlots:
    """The sequences that this ingress replica has open at each tier.

    A tier has `max_ongoing_requests` slots at each running replica and `max_queued_requests` more, some of which are
    kept for keys that hold few (`serve_app/fairness/places.py`). A tier with nothing open accepts any request: that
    request wakes it.

    Args:
        tiers: the registry.
        pool: knows how many replicas run.
    """

    def __init__(self, tiers: Mapping[TierName, Tier], pool: PoolView) -> None:
        self._tiers = tiers
        self._pool = pool
        self._open: defaultdict[TierName, Holders] = defaultdict(Holders)

    def take(
        self, tier: TierName, sequences: int, claim: Claim = ANYBODY, *, at_any_rate: bool = False
    ) -> Callable[[], None]:
        """Take slots for a request of so many sequences; `at_any_rate`: for one that had them and goes on.

        Returns:
            A function that frees them, to be called once.

        Raises:
            ApiError: 503, the tier is full.
        """
        settings, running = self._tiers[tier], self._pool.observation.tier(tier).running
        slots = running * settings.max_ongoing_requests + settings.max_queued_requests
        holders = self._open[tier]
        if not at_any_rate and holders.all and not holders.may_take(claim, slots, sequences):
            raise self.full(tier)
        holders.take(claim, sequences)
        return lambda: holders.free(claim, sequences)

    def full(self, tier: TierName) -> ApiError:
        """Return the error of a tier without a free slot."""
        return overloaded(f"tier {tier} has too many requests waiting")
