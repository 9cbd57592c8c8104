"""The ingress's copy of the pool's observation: refreshed in the background, read without waiting."""

from __future__ import annotations

import asyncio

from ray.serve.handle import DeploymentHandle

from cluster.pool.messages import LONG_POLL_S
from cluster.supervision import Supervised
from router.observation import Observation
from router.registry import DraftsChoice, TierName
from serve_app.api.errors import ApiError
from serve_app.transport.ray_errors import RAY_ERRORS, ray_errors_as


class PoolView:
    """The newest observation. `work` keeps it fresh; while the pool is away, the last one stays.

    Args:
        pool: handle of the `GpuPool` deployment.
    """

    def __init__(self, pool: DeploymentHandle) -> None:
        self._pool = pool
        self.work = Supervised("ingress: view of the pool", self.refresh, away=RAY_ERRORS)
        self.observation = Observation()
        self._version = -1

    def unavailable(self, tier: TierName) -> ApiError:
        """Return the error of a tier that cannot start, with the reasons."""
        reason = self.observation.tier(tier).reason or "its replicas fail to start"
        return ApiError("tier_unavailable", f"tier {tier} cannot start: {reason}", status=503, retryable=True)

    def raise_if_failed(self, tier: TierName) -> None:
        """Refuse to wait for a tier that Serve has given up.

        Raises:
            ApiError: the tier cannot start.
        """
        if self.observation.tier(tier).failed:
            raise self.unavailable(tier)

    async def refresh(self) -> None:
        """Wait for an observation newer than the last, and store it.

        Raises:
            TimeoutError: the answer was lost; the pool never takes that long.
        """
        # If this fails, the pool may have restarted, and its versions begin again.
        last, self._version = self._version, -1
        async with asyncio.timeout(2 * LONG_POLL_S):
            self._version, self.observation = await self._pool.wait_for_update.remote(last)

    async def metrics(self) -> bytes:
        """Return the metrics of all replicas, as Prometheus reads them.

        Raises:
            ApiError: the pool is away for a moment.
        """
        with ray_errors_as(_pool_unavailable):
            async with asyncio.timeout(LONG_POLL_S):
                exposition: bytes = await self._pool.metrics.remote()
        return exposition

    async def order_drafts(self, tier: TierName, drafts: DraftsChoice) -> None:
        """Order all replicas of a tier to use these drafts.

        Raises:
            ApiError: the pool is away for a moment.
        """
        with ray_errors_as(_pool_unavailable):
            async with asyncio.timeout(LONG_POLL_S):
                await self._pool.order_drafts.remote(tier, drafts)


def _pool_unavailable(error: Exception) -> ApiError:
    message = f"the GPU pool does not answer: {error}"
    return ApiError("pool_unavailable", message, status=503, retryable=True)
