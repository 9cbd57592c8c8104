"""The ingress's client of the tiers: it calls a replica through Serve, and gets the items over the token channel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle, DeploymentResponse

from router.registry import TierName
from serve_app.admission.tier_slots import TierSlots
from serve_app.api.errors import ApiError, Failure
from serve_app.engine.interface import Admitted, Finished, GenerationRequest, HttpProgress, HttpRun, TokenBatch
from serve_app.fairness.claims import Claim
from serve_app.pool.view import PoolView
from serve_app.transport.asgi_call import HttpCall, ResponseStart
from serve_app.transport.channel import Item, TokenChannel
from serve_app.transport.ray_errors import ray_errors_as
from serve_app.transport.stream import ItemStream

GenerationStream = ItemStream[Admitted | TokenBatch | Finished]
"""Items of `EngineDeployment.generate`."""
ResponseStream = ItemStream[ResponseStart | bytes | HttpProgress | HttpRun]
"""Items of `EngineDeployment.http`; `bytes` are pieces of the response's body."""


class TierClient:
    """Calls the tiers' replicas. Each stream ends with an `ApiError` if the tier is full or its replica is lost.

    Closing a stream cancels its request in the replica, also while the request is still queued.

    Args:
        handles: one deployment handle per tier.
        channel: receives the items.
        pool: knows why a tier cannot start.
        slots: refuses a request before it is sent if its tier is full.
    """

    def __init__(
        self,
        handles: Mapping[TierName, DeploymentHandle],
        channel: TokenChannel,
        pool: PoolView,
        slots: TierSlots,
    ) -> None:
        self._handles = handles
        self._channel = channel
        self._pool = pool
        self._slots = slots

    def generate(self, tier: TierName, request: GenerationRequest) -> GenerationStream:
        """Send a request to a tier's engine."""
        resumes = request.resume is not None
        return cast(GenerationStream, self._call(tier, "generate", request, request.claim, resumes=resumes))

    def http(self, tier: TierName, call: HttpCall) -> ResponseStream:
        """Send a request of the `/v1` routes to a tier's engine."""
        return cast(ResponseStream, self._call(tier, "http", call, call.claim, call.sequences))

    def wake(self, tier: TierName) -> Callable[[], object]:
        """Have a replica of a tier started where none runs.

        Returns:
            A function that ends the wait for it. A replica that starts goes on starting.
        """
        response: DeploymentResponse = self._handles[tier].wake.remote()
        waiting = asyncio.ensure_future(self._result(tier, response))

        def over(waiting: asyncio.Task[None]) -> None:
            if not waiting.cancelled():
                waiting.exception()  # nobody waits for it: an answer only goes on there once the tier is warm
            response.cancel()

        waiting.add_done_callback(over)
        return waiting.cancel

    def _call(
        self,
        tier: TierName,
        method: str,
        argument: object,
        claim: Claim,
        sequences: int = 1,
        *,
        resumes: bool = False,
    ) -> ItemStream[Item]:
        stream = self._channel.open()
        try:
            stream.on_end(self._slots.take(tier, sequences, claim, at_any_rate=resumes))
        except ApiError as full:
            stream.end(full)
            return stream
        response: DeploymentResponse = getattr(self._handles[tier], method).remote(argument, stream.reply_to)
        result = asyncio.ensure_future(self._result(tier, response))

        def finish(result: asyncio.Task[None]) -> None:
            # An error that nobody expected ends the stream too, and a cancellation: Serve may cancel by itself.
            if result.cancelled():
                stream.end(_lost(tier))
            elif error := result.exception():
                stream.end(error)
            # Not in a `finally` of `_result`: a task that is cancelled before its first step runs none.
            response.cancel()

        result.add_done_callback(finish)
        stream.on_close(result.cancel)
        return stream

    async def _result(self, tier: TierName, response: DeploymentResponse) -> None:
        """Wait until the replica has sent everything.

        Raises:
            ApiError: it has not.
        """
        with ray_errors_as(partial(self._api_error, tier)):
            failure: Failure | None = await response
        if failure is not None:
            raise failure.as_api_error()

    def _api_error(self, tier: TierName, error: Exception) -> ApiError:
        if isinstance(error, BackPressureError):
            return self._slots.full(tier)
        if isinstance(error, DeploymentUnavailableError):
            return self._pool.unavailable(tier)
        return _lost(tier)


def _lost(tier: TierName) -> ApiError:
    return ApiError("replica_lost", f"the replica of tier {tier} went away", status=503, retryable=True)
