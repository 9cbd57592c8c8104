"""Requests to a tier: items over the token channel, cancelled when closed, Serve's errors as `ApiError`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from dataclasses import replace
from typing import Any

import pytest
from grpc import RpcError
from ray.exceptions import ActorUnavailableError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RequestCancelledError

from router.observation import TierState
from serve_app.admission.tier_slots import TierSlots
from serve_app.api.errors import ApiError, Failure
from serve_app.engine.interface import Admitted
from serve_app.transport.asgi_call import HttpCall, ResponseStart
from serve_app.transport.channel import Item, ReplyTo, TokenChannel, send_items
from serve_app.transport.client import TierClient
from serve_app.transport.stream import TICK, ItemStream
from tests.support.app_config import FixedPool, app_config
from tests.support.real_loops import REAL_LOOPS
from tests.support.requests import generation
from tests.support.streams import Script, Wait

pytestmark = REAL_LOOPS

TIERS = app_config(tiers={"eco": {"max_ongoing_requests": 2, "max_queued_requests": 3}}).tiers
PATIENCE_S = 20.0
"""A test that waits so long has failed, s."""
FOR_EVER = Wait(3600)
LOST = ActorUnavailableError("the node is gone", b"1" * 16)
CALL_FAILED = RpcError("the call to the replica failed")
ADMITTED = Admitted()
ONE: object = b"one"
CALL = HttpCall("POST", "/v1/completions", [], b"{}")
Method = Callable[[ReplyTo], Awaitable[Failure | None]]


class Response:
    """Serve's response: awaiting it returns the method's result; only `cancel` stops the method."""

    def __init__(self, running: Awaitable[Failure | None]) -> None:
        self.task = asyncio.ensure_future(running)
        self.cancelled = 0

    def __await__(self) -> Generator[Any, None, Failure | None]:
        try:
            return (yield from asyncio.shield(self.task).__await__())
        except asyncio.CancelledError:
            if self.cancelled:
                raise RequestCancelledError("r1") from None
            raise

    def cancel(self) -> None:
        self.cancelled += 1
        self.task.cancel()


class Tier:
    """A deployment handle and the replica behind it.

    Args:
        method: what the replica does when it is called.
    """

    def __init__(self, method: Method) -> None:
        self._method = method
        self.calls: list[tuple[str, object]] = []
        self.response: Response | None = None
        self._name = ""

    def __getattr__(self, name: str) -> Tier:
        self._name = name
        return self

    def remote(self, argument: object, reply_to: ReplyTo) -> Response:
        self.calls.append((self._name, argument))
        self.response = Response(self._method(reply_to))
        return self.response

    @property
    def cancelled(self) -> int:
        assert self.response is not None
        return self.response.cancelled

    async def ended(self) -> None:
        """Wait until the replica is done with the request."""
        assert self.response is not None
        await asyncio.wait_for(asyncio.wait({self.response.task}), PATIENCE_S)
        assert self.response.task.done()


def sends(*items: Item | Wait | Exception) -> tuple[Tier, Script[Item]]:
    """A tier whose replica sends these items, as `EngineDeployment` does."""
    script: Script[Item] = Script(items)
    return Tier(lambda reply_to: send_items(reply_to, "r", script.stream())), script


def says(error: BaseException) -> Tier:
    """A tier for which Serve raises this instead of calling a replica."""

    async def method(reply_to: ReplyTo) -> Failure | None:
        raise error

    return Tier(method)


@pytest.fixture
async def channel() -> AsyncIterator[TokenChannel]:
    channel = TokenChannel()
    await channel.start("127.0.0.1")
    yield channel
    channel.stop()


def client(channel: TokenChannel, tier: Tier, state: TierState | None = None) -> TierClient:
    handles: dict[Any, Any] = {"eco": tier}
    pool = FixedPool({"eco": state or TierState()})
    return TierClient(handles, channel, pool, TierSlots(TIERS, pool))


async def rest(stream: ItemStream[Any]) -> list[object]:
    items: list[object] = []
    while (item := await stream.get(PATIENCE_S)) is not None:
        items.append(item)
    return items


async def error_of(stream: ItemStream[Any]) -> ApiError:
    with pytest.raises(ApiError) as error:
        await stream.get(PATIENCE_S)
    return error.value


async def test_generate_returns_the_replicas_items_unchanged(channel: TokenChannel) -> None:
    tier, script = sends(ADMITTED, b"one", b"two")
    request = generation()
    assert await rest(client(channel, tier).generate("eco", request)) == [ADMITTED, b"one", b"two"]
    assert tier.calls == [("generate", request)]
    assert script.closed


async def test_http_returns_the_replicas_items_unchanged(channel: TokenChannel) -> None:
    start = ResponseStart(200, [(b"content-type", b"application/json")])
    tier, script = sends(start, b"{}")
    assert await rest(client(channel, tier).http("eco", CALL)) == [start, b"{}"]
    assert tier.calls == [("http", CALL)]
    assert script.closed


async def test_a_request_is_sent_before_its_stream_is_read(channel: TokenChannel) -> None:
    tier, script = sends(b"one")
    stream = client(channel, tier).generate("eco", generation())
    assert len(tier.calls) == 1
    await tier.ended()
    assert script.taken == [b"one"]
    assert await rest(stream) == [b"one"]


async def test_two_requests_get_their_own_items(channel: TokenChannel) -> None:
    numbers = iter(range(2))

    def method(reply_to: ReplyTo) -> Awaitable[Failure | None]:
        script: Script[Item] = Script([f"{next(numbers)}".encode()])
        return send_items(reply_to, "r", script.stream())

    tiers = client(channel, Tier(method))
    first, second = (tiers.generate("eco", generation()) for _ in range(2))
    assert (await rest(second), await rest(first)) == ([b"1"], [b"0"])


async def test_closing_midway_cancels_in_the_replica(channel: TokenChannel) -> None:
    tier, script = sends(b"one", FOR_EVER)
    stream = client(channel, tier).generate("eco", generation())
    assert await stream.get(PATIENCE_S) == ONE
    assert (tier.cancelled, script.closed) == (0, False)
    await stream.aclose()
    await tier.ended()
    assert (tier.cancelled, script.closed) == (1, True)
    assert await stream.get(PATIENCE_S) is None


async def test_closing_twice_cancels_once(channel: TokenChannel) -> None:
    tier, _ = sends(b"one", FOR_EVER)
    stream = client(channel, tier).generate("eco", generation())
    assert await stream.get(PATIENCE_S) == ONE
    await stream.aclose()
    await stream.aclose()
    await tier.ended()
    await stream.aclose()
    assert tier.cancelled == 1


async def test_closing_at_once_cancels_too(channel: TokenChannel) -> None:
    # Before the task that waits for the result has begun to run.
    tier, script = sends(b"one")
    stream = client(channel, tier).generate("eco", generation())
    await stream.aclose()
    await tier.ended()
    assert tier.cancelled == 1
    assert script.taken == []
    assert await stream.get(PATIENCE_S) is None


async def test_closing_while_the_request_is_queued_cancels_it(channel: TokenChannel) -> None:
    async def queued(reply_to: ReplyTo) -> Failure | None:
        await asyncio.sleep(3600)
        return None

    tier = Tier(queued)
    stream = client(channel, tier).generate("eco", generation())
    assert await stream.get(0.01) is TICK
    await stream.aclose()
    assert await stream.get(PATIENCE_S) is None
    await tier.ended()
    assert tier.cancelled == 1


async def test_back_pressure_of_serve_is_a_503(channel: TokenChannel) -> None:
    error = await error_of(client(channel, says(BackPressureError(64, 64))).generate("eco", generation()))
    assert error.message == "tier eco has too many requests waiting"
    assert (error.status, error.code, error.retryable) == (503, "overloaded", True)


async def test_a_tier_that_failed_to_deploy_is_a_503_with_its_reasons(channel: TokenChannel) -> None:
    state = TierState(failed=True, reason="step small-ngram failed: no memory")
    tier = says(DeploymentUnavailableError("eco"))
    error = await error_of(client(channel, tier, state).generate("eco", generation()))
    assert error.message == "tier eco cannot start: step small-ngram failed: no memory"
    assert (error.status, error.code) == (503, "tier_unavailable")


@pytest.mark.parametrize("notice", [LOST, CALL_FAILED, asyncio.CancelledError()], ids=["Ray", "gRPC", "cancelled"])
async def test_a_node_that_dies_midway_is_a_retryable_error(channel: TokenChannel, notice: BaseException) -> None:
    # The connection stays silent, and only Serve notices. Its gRPC client cancels the call when its channel to a
    # replica is closed, although nothing is cancelled here.
    noticed = asyncio.Event()
    script: Script[Item] = Script([b"one", FOR_EVER])
    connections = []

    async def dying(reply_to: ReplyTo) -> Failure | None:
        connections.append(asyncio.ensure_future(send_items(reply_to, "r", script.stream())))
        await noticed.wait()
        raise notice

    stream = client(channel, Tier(dying)).generate("eco", generation())
    assert await stream.get(PATIENCE_S) == ONE
    noticed.set()
    error = await error_of(stream)
    assert error.message == "the replica of tier eco went away"
    assert (error.code, error.status, error.retryable) == ("replica_lost", 503, True)
    await stream.aclose()
    connections[0].cancel()


async def test_a_process_that_dies_midway_is_a_retryable_error(channel: TokenChannel) -> None:
    # Its connection ends, and Serve notices too; either may be first.
    killed = asyncio.Event()

    async def dying(reply_to: ReplyTo) -> Failure | None:
        _, writer = await asyncio.open_connection(reply_to.host, reply_to.port)
        writer.write(reply_to.greeting("r") + b"\0\0\0\3\0one")
        await killed.wait()
        writer.close()
        raise LOST

    stream = client(channel, Tier(dying)).generate("eco", generation())
    assert await stream.get(PATIENCE_S) == ONE
    killed.set()
    for _ in range(2):
        error = await error_of(stream)
        assert (error.code, error.status, error.retryable) == ("replica_lost", 503, True)


async def test_a_replica_that_cannot_connect_reports_it_through_serve(channel: TokenChannel) -> None:
    async def unconnected(reply_to: ReplyTo) -> Failure | None:
        return Failure("channel_failed", "cannot connect to 10.0.0.1:4000", 502, True)

    error = await error_of(client(channel, Tier(unconnected)).generate("eco", generation()))
    assert (error.code, error.message) == ("channel_failed", "cannot connect to 10.0.0.1:4000")
    assert (error.status, error.retryable) == (502, True)


async def test_an_unexpected_error_is_raised_unchanged(channel: TokenChannel) -> None:
    stream = client(channel, says(TypeError("cannot pickle that"))).generate("eco", generation())
    with pytest.raises(TypeError, match="cannot pickle that"):
        await stream.get(PATIENCE_S)


async def test_serves_result_does_not_overtake_items(channel: TokenChannel) -> None:
    tier, _ = sends(*[b"x" * 10_000] * 200)
    stream = client(channel, tier).generate("eco", generation())
    await tier.ended()
    assert await rest(stream) == [b"x" * 10_000] * 200


async def test_a_failure_of_the_engine_ends_the_stream_with_that_error(channel: TokenChannel) -> None:
    tier, _ = sends(ADMITTED, Failure("engine_failed", "out of memory", 500, True))
    stream = client(channel, tier).generate("eco", generation())
    assert await stream.get(PATIENCE_S) == ADMITTED
    error = await error_of(stream)
    assert (error.code, error.message, error.status) == ("engine_failed", "out of memory", 500)
    assert error.retryable


async def test_a_tier_gets_exactly_as_many_requests_as_it_has_slots(channel: TokenChannel) -> None:
    # Two replicas with two slots each, and three in the queue.
    tier, _ = sends(ADMITTED, FOR_EVER)
    tiers = client(channel, tier, TierState(running=2))
    streams = [tiers.generate("eco", generation()) for _ in range(50)]

    assert len(tier.calls) == 7
    for full in streams[7:]:
        error = await error_of(full)
        assert (error.status, error.code, error.retryable) == (503, "overloaded", True)
    for stream in streams:
        await stream.aclose()


async def test_a_request_with_many_sequences_takes_as_many_slots(channel: TokenChannel) -> None:
    tier, _ = sends(ADMITTED, FOR_EVER)
    tiers = client(channel, tier, TierState(running=2))
    first = tiers.http("eco", replace(CALL, sequences=5))
    full, second = tiers.http("eco", replace(CALL, sequences=3)), tiers.http("eco", replace(CALL, sequences=2))
    assert (await error_of(full)).code == "overloaded"
    assert len(tier.calls) == 2
    await first.aclose()
    third = tiers.http("eco", replace(CALL, sequences=5))
    assert len(tier.calls) == 3
    for stream in (second, third):
        await stream.aclose()


@pytest.mark.parametrize("way", ["whole", "failed", "lost", "left"])
async def test_a_slot_is_free_again_whatever_ends_the_request(channel: TokenChannel, way: str) -> None:
    tier = {
        "whole": sends(ADMITTED)[0],
        "failed": says(BackPressureError(1, 1)),
        "lost": says(LOST),
        "left": sends(ADMITTED, FOR_EVER)[0],
    }[way]
    tiers = client(channel, tier)
    for _ in range(5):
        stream: ItemStream[Any] = tiers.http("eco", replace(CALL, sequences=3))
        if way == "whole":
            assert await rest(stream) == [ADMITTED]
        elif way == "left":
            assert await stream.get(PATIENCE_S) == ADMITTED
        else:
            await error_of(stream)
        await stream.aclose()
        await stream.aclose()
    assert len(tier.calls) == 5


async def test_an_idle_tier_accepts_a_request_that_needs_more_slots_than_it_has(channel: TokenChannel) -> None:
    tier, _ = sends(ADMITTED, FOR_EVER)
    tiers = client(channel, tier)
    large = tiers.http("eco", replace(CALL, sequences=60))
    assert len(tier.calls) == 1
    assert (await error_of(tiers.http("eco", CALL))).code == "overloaded"
    await large.aclose()
