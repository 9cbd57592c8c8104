"""The ingress's copy of the GPU pool view: refreshed beside the requests, read without waiting."""

from __future__ import annotations

import asyncio

from ray.serve.handle import DeploymentHandle

from cluster.pool.messages import LONG_POLL_S, POOL_AWAY
from cluster.supervised import Supervised
from router.observation import Observation
from router.registry import Drafts, TierName
from serve_app.api.errors import ApiError


class PoolView:
    """The newest observation. `work` keeps it fresh; while the pool is away, the last one stays.

    Args:
        pool: handle of the `GpuPool` deployment.
    """

    def __init__(self, pool: DeploymentHandle) -> None:
        self._pool = pool
        self.work = Supervised("ingress: view of the pool", self.refresh, away=POOL_AWAY)
        self.observation = Observation()
        self._version = -1

    def unavailable(self, tier: TierName) -> ApiError:
        """The error of a tier that cannot start, with the reasons."""
        reason = self.observation.tier(tier).reason or "its replicas fail to start"
        return ApiError("tier_unavailable", f"tier {tier} cannot start: {reason}", status=503, retryable=True)

    def raise_if_failed(self, tier: TierName) -> None:
        """Waiting for a tier that has given up is useless.

        Raises:
            ApiError: the tier cannot start.
        """
        if self.observation.tier(tier).failed:
            raise self.unavailable(tier)

    async def refresh(self) -> None:
        """Wait for an observation newer than the last, and take it.

        Raises:
            TimeoutError: the answer was lost; the pool never takes that long.
        """
        seen, self._version = self._version, -1  # where this fails, the pool may have restarted, and counts anew
        async with asyncio.timeout(2 * LONG_POLL_S):
            self._version, self.observation = await self._pool.wait_for_update.remote(seen)

    async def order_drafts(self, tier: TierName, drafts: Drafts) -> None:
        """Have the replicas of a tier use these drafts.

        Raises:
            ApiError: the pool is away for a moment.
        """
        try:
            async with asyncio.timeout(LONG_POLL_S):
                await self._pool.order_drafts.remote(tier, drafts)
        except POOL_AWAY as error:
            message = f"the GPU pool view does not answer: {error}"
            raise ApiError("pool_unavailable", message, status=503, retryable=True) from error
