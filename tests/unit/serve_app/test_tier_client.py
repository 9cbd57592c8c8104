"""Streams from a tier: submitted when first read, cancelled when closed, Serve's exceptions as `ApiError`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from router.observation import TierState
from serve_app.errors import ApiError
from serve_app.tier_client import TierClient
from tests.support.app_config import FixedPool
from tests.support.requests import generation

LOST = ActorUnavailableError("the node is gone", b"1" * 16)


class FakeHandle:
    """A deployment handle, its method and its response in one."""

    def __init__(self, items: Sequence[object] = ()) -> None:
        self.items = items
        self.asked: list[object] = []
        self.cancelled = 0

    def options(self, *, stream: bool) -> FakeHandle:
        assert stream
        return self

    @property
    def generate(self) -> FakeHandle:
        return self

    openai = generate

    def remote(self, argument: object) -> FakeHandle:
        self.asked.append(argument)
        return self

    async def __aiter__(self) -> AsyncIterator[object]:
        for item in self.items:
            if isinstance(item, Exception):
                raise item
            yield item

    def cancel(self) -> None:
        self.cancelled += 1


def client(handle: FakeHandle, state: TierState | None = None) -> TierClient:
    handles: dict[Any, Any] = {"eco": handle}
    return TierClient(handles, FixedPool({"eco": state or TierState()}), retry_after_s=7)


async def test_the_replicas_items_come_as_they_are() -> None:
    handle, request = FakeHandle([b"one", b"two"]), generation()
    assert [item async for item in client(handle).generate("eco", request)] == [b"one", b"two"]
    assert handle.asked == [request]


async def test_closing_midway_cancels_in_the_replica() -> None:
    handle = FakeHandle([b"one", b"two"])
    stream = client(handle).generate("eco", generation())
    assert await anext(stream) == b"one"
    assert handle.cancelled == 0
    await stream.aclose()
    assert handle.cancelled == 1


async def test_a_stream_that_is_closed_before_it_is_read_was_never_submitted() -> None:
    handle = FakeHandle([b"one"])
    await client(handle).generate("eco", generation()).aclose()
    assert handle.asked == []


async def test_a_full_queue_is_a_503_that_tells_when_to_try_again() -> None:
    with pytest.raises(ApiError, match="tier eco has too many requests waiting") as error:
        await anext(client(FakeHandle([BackPressureError(64, 64)])).generate("eco", generation()))
    assert (error.value.status, error.value.code, error.value.retry_after_s) == (503, "overloaded", 7)


async def test_a_tier_that_failed_to_deploy_is_told_with_its_reasons() -> None:
    handle = FakeHandle([DeploymentUnavailableError("eco")])
    state = TierState(failed=True, reason="step small-ngram failed: no memory")
    with pytest.raises(ApiError, match="step small-ngram failed: no memory") as error:
        await anext(client(handle, state).generate("eco", generation()))
    assert (error.value.status, error.value.code) == (503, "tier_unavailable")


async def test_a_replica_that_dies_midway_is_a_retryable_error() -> None:
    handle = FakeHandle([b"one", LOST])
    stream = client(handle).generate("eco", generation())
    await anext(stream)
    with pytest.raises(ApiError, match="the replica of tier eco went away") as error:
        await anext(stream)
    assert (error.value.code, error.value.retryable) == ("replica_lost", True)
    assert handle.cancelled == 1
