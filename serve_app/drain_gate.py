"""The ingress's part in a stop: counts the open requests, and refuses new ones once the application is stopping."""

from __future__ import annotations

import asyncio
import logging

from grpc import RpcError
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.gpu_pool import NEWS_WITHIN_S
from cluster.open_requests import REPORT_OPEN_EVERY_S
from serve_app.door import request_id
from serve_app.errors import ApiError, error_response

logger = logging.getLogger("ray.serve")
_RETRY_AFTER_S = 1.0
_ALWAYS_OPEN = frozenset({"/healthz"})
"""This process serves until its end; `/readyz` is refused as any new request, so balancers go elsewhere."""


class DrainGate:
    """Open until the pool says that the application is being stopped. `run` listens for that until cancelled.

    Args:
        pool: handle of the `GpuPool` deployment.
        replica_id: of this ingress replica.
        retry_after_s: `Retry-After` of refusals, s.
    """

    def __init__(self, pool: DeploymentHandle, replica_id: str, retry_after_s: int) -> None:
        self._pool = pool
        self._replica_id = replica_id
        self._retry_after_s = retry_after_s
        self._inside = 0
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
                self._inside += 1
                try:
                    await app(scope, receive, send)
                finally:
                    self._inside -= 1

        return guarded

    async def run(self) -> None:
        """Close when the pool says so, then tell it how many are inside, for ever."""
        while True:
            try:
                if self._closed:
                    await self._pool.report_open.remote(self._replica_id, self._inside)
                    await asyncio.sleep(REPORT_OPEN_EVERY_S)
                else:
                    async with asyncio.timeout(2 * NEWS_WITHIN_S):
                        self._closed = await self._pool.closed.remote()
            except (RayError, RayServeException, RpcError, TimeoutError) as error:
                logger.warning("the pool does not say whether the application is stopping: %s", error)
                await asyncio.sleep(_RETRY_AFTER_S)
            except asyncio.CancelledError:
                # Serve and gRPC cancel a call of their own accord when its replica goes away.
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                await asyncio.sleep(_RETRY_AFTER_S)


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
