"""The ingress replica's part in a drain: it waits for the pool to begin one, then reports its open requests."""

from __future__ import annotations

import asyncio

from ray.serve.handle import DeploymentHandle

from cluster.pool.messages import LONG_POLL_S, REPORT_OPEN_EVERY_S
from cluster.supervision import Supervised
from serve_app.admission.open_requests import OpenRequests
from serve_app.transport.ray_errors import RAY_ERRORS


class Drain:
    """Sets `OpenRequests.draining` once the pool says that the application is being stopped.

    Args:
        pool: handle of the `GpuPool` deployment.
        replica_id: of this ingress replica.
        requests: of this ingress replica.
    """

    def __init__(self, pool: DeploymentHandle, replica_id: str, requests: OpenRequests) -> None:
        self._pool = pool
        self._replica_id = replica_id
        self._requests = requests
        self.work = Supervised("ingress: drain", self._follow, away=RAY_ERRORS)

    async def _follow(self) -> None:
        async with asyncio.timeout(2 * LONG_POLL_S):
            if not self._requests.draining:
                self._requests.draining = await self._pool.closed.remote()
            if self._requests.draining:
                await self._pool.report_open.remote(self._replica_id, self._requests.count)
        if self._requests.draining:
            await asyncio.sleep(REPORT_OPEN_EVERY_S)
