"""The ingress's way to the tiers: asks an engine replica through Serve, and gets its items over the token channel."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

from grpc import RpcError
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponse

from router.registry import TierName
from serve_app.admission.tier_slots import Admission
from serve_app.api.errors import ApiError, Failure
from serve_app.engine.deployment import StreamItem
from serve_app.engine.interface import GenerationRequest
from serve_app.pool.view import PoolView
from serve_app.transport.asgi_call import HttpCall, ResponseStart
from serve_app.transport.channel import ReplicaStream, Item, TokenChannel
from serve_app.transport.stream import ItemStream


class TierClient:
    """Requests to the tiers' replicas. Closing the stream of one cancels it there, also while it is still queued.

    Args:
        handles: one deployment handle per tier.
        channel: where replicas send items.
        pool: knows why a tier cannot start.
        admission: refuses what a tier has no room for, before it is sent.
    """

    def __init__(
        self,
        handles: Mapping[TierName, DeploymentHandle],
        channel: TokenChannel,
        pool: PoolView,
        admission: Admission,
    ) -> None:
        self._handles = handles
        self._channel = channel
        self._pool = pool
        self._admission = admission

    def generate(self, tier: TierName, request: GenerationRequest) -> ItemStream[StreamItem]:
        """Items of `EngineDeployment.generate`; ends with an `ApiError` when the tier is full or its replica lost."""
        return cast(ItemStream[StreamItem], self._ask(tier, "generate", request))

    def openai(self, tier: TierName, call: HttpCall, sequences: int) -> ItemStream[ResponseStart | bytes | Failure]:
        """Items of `EngineDeployment.openai`, for a request of so many sequences; ends as `generate`."""
        return cast(ItemStream[ResponseStart | bytes | Failure], self._ask(tier, "openai", call, sequences))

    def _ask(self, tier: TierName, method: str, argument: object, sequences: int = 1) -> ItemStream[Item]:
        stream = self._channel.open()
        try:
            stream.on_end(self._admission.take(tier, sequences))
        except ApiError as full:
            stream.end(full)
            return stream
        response: DeploymentResponse = getattr(self._handles[tier], method).remote(argument, stream.reply_to)
        watching = asyncio.ensure_future(self._watch(tier, response, stream))

        def finish(watching: asyncio.Task[None]) -> None:
            # What nobody expected ends the stream too, instead of leaving it silent: Serve may cancel by itself.
            if watching.cancelled():
                stream.end(_lost(tier))
            elif error := watching.exception():
                stream.end(error)
            # Not in a `finally` of `_watch`: a task that is cancelled before it began runs none.
            response.cancel()

        watching.add_done_callback(finish)
        stream.attend(watching)
        return stream

    async def _watch(self, tier: TierName, response: DeploymentResponse, stream: ReplicaStream) -> None:
        """End the stream with what Serve says, where the replica itself can say nothing."""
        try:
            failure: Failure | None = await response
            if failure is not None:
                stream.end(failure.as_api_error())
        except BackPressureError:
            stream.end(self._admission.full(tier))
        except DeploymentUnavailableError:
            stream.end(self._pool.unavailable(tier))
        except (RayError, RayServeException, RpcError):
            stream.end(_lost(tier))


def _lost(tier: TierName) -> ApiError:
    return ApiError("replica_lost", f"the replica of tier {tier} went away", status=503, retryable=True)
