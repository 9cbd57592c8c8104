"""The ingress's part in a stop: counts the open requests, and refuses new ones once the application is stopping."""

from __future__ import annotations

import asyncio

from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.pool.messages import LONG_POLL_S, POOL_AWAY, REPORT_OPEN_EVERY_S
from cluster.supervised import Supervised
from serve_app.admission.door import request_id
from serve_app.api.errors import ApiError, error_response

_ALWAYS_OPEN = frozenset({"/healthz"})
"""This process serves until its end; `/readyz` is refused as any new request, so balancers go elsewhere."""


class DrainGate:
    """Open until the pool says that the application is being stopped. `work` listens for that.

    Args:
        pool: handle of the `GpuPool` deployment.
        replica_id: of this ingress replica.
        retry_after_s: `Retry-After` of refusals, s.
    """

    def __init__(self, pool: DeploymentHandle, replica_id: str, retry_after_s: int) -> None:
        self._pool = pool
        self._replica_id = replica_id
        self._retry_after_s = retry_after_s
        self.work = Supervised("ingress: word of a stop", self.listen, away=POOL_AWAY)
        self._open = 0
        self._closed = False

    def guard(self, app: ASGIApp) -> ASGIApp:
        """The application behind this gate."""

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or _path(scope) in _ALWAYS_OPEN:
                await app(scope, receive, send)
            elif self._closed:
                error = ApiError(
                    "stopping",
                    "the server is stopping and takes nothing new",
                    status=503,
                    retryable=True,
                    retry_after_s=self._retry_after_s,
                )
                await error_response(error, request_id(scope["headers"]))(scope, receive, send)
            else:
                self._open += 1
                try:
                    await app(scope, receive, send)
                finally:
                    self._open -= 1

        return guarded

    async def listen(self) -> None:
        """Close when the pool says so; from then on tell it how many requests are open."""
        async with asyncio.timeout(2 * LONG_POLL_S):
            if not self._closed:
                self._closed = await self._pool.closed.remote()
            if self._closed:
                await self._pool.report_open.remote(self._replica_id, self._open)
        if self._closed:
            await asyncio.sleep(REPORT_OPEN_EVERY_S)


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
