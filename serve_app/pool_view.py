"""The ingress's copy of the GPU pool view: refreshed beside the requests, read without waiting."""

from __future__ import annotations

import asyncio
import logging

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from router.observation import Observation

logger = logging.getLogger("ray.serve")
_REFRESH_EVERY_S = 0.5


class PoolView:
    """The newest observation. `run` keeps it fresh until cancelled.

    Args:
        pool: handle of the `GpuPool` deployment.
    """

    def __init__(self, pool: DeploymentHandle) -> None:
        self._pool = pool
        self.observation = Observation()

    async def refresh(self) -> None:
        """Fetch the pool's snapshot now."""
        self.observation = await self._pool.snapshot.remote()

    async def run(self) -> None:
        """Refresh for ever; while the pool is away, the last observation stays."""
        while True:
            try:
                await self.refresh()
            except (RayError, RayServeException) as error:
                logger.warning("the pool view is stale: %s", error)
            await asyncio.sleep(_REFRESH_EVERY_S)
