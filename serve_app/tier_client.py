"""The ingress's way to the tiers: streams from an engine replica, with Serve's exceptions turned into `ApiError`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import TypeVar, cast

from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from router.tiers import TierName
from serve_app.engine.asgi_call import HttpCall, ResponseStart
from serve_app.engine.deployment import StreamItem
from serve_app.engine.interface import GenerationRequest
from serve_app.errors import ApiError, overloaded
from serve_app.pool_view import PoolView

ItemT = TypeVar("ItemT")


class TierClient:
    """Streams from the tiers' replicas. Closing a stream cancels it there, also while it is still queued.

    Args:
        handles: one deployment handle per tier.
        pool: knows why a tier cannot start.
        retry_after_s: `Retry-After` of refusals, s.
    """

    def __init__(self, handles: Mapping[TierName, DeploymentHandle], pool: PoolView, retry_after_s: int) -> None:
        self._handles = {name: handle.options(stream=True) for name, handle in handles.items()}
        self._pool = pool
        self._retry_after_s = retry_after_s

    def generate(self, tier: TierName, request: GenerationRequest) -> AsyncGenerator[StreamItem, None]:
        """Items of `EngineDeployment.generate`.

        Raises:
            ApiError: the tier's queue is full, or its replica went away.
        """
        return self._relay(tier, "generate", request)

    def openai(self, tier: TierName, call: HttpCall) -> AsyncGenerator[ResponseStart | bytes, None]:
        """Items of `EngineDeployment.openai`.

        Raises:
            ApiError: the tier's queue is full, or its replica went away.
        """
        return self._relay(tier, "openai", call)

    async def _relay(self, tier: TierName, method: str, argument: object) -> AsyncGenerator[ItemT, None]:
        # Submitted in here, not before: closing a generator that never ran could cancel nothing.
        remote = getattr(self._handles[tier], method).remote
        response = cast(DeploymentResponseGenerator, remote(argument))
        try:
            async for item in response:
                yield item
        except BackPressureError as error:
            raise overloaded(f"tier {tier} has too many requests waiting", self._retry_after_s) from error
        except DeploymentUnavailableError as error:
            raise self._pool.unavailable(tier) from error
        except (RayError, RayServeException) as error:
            raise ApiError(
                "replica_lost", f"the replica of tier {tier} went away", status=503, retryable=True
            ) from error
        finally:
            response.cancel()
