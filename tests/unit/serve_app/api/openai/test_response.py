"""How the replica's response to an OpenAI request is passed on."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from router.observation import TierState
from serve_app.api.errors import ApiError, Failure, overloaded
from serve_app.api.openai.response import OpenAIExchange
from serve_app.api.sse import PING
from serve_app.transport.asgi_call import ResponseStart
from serve_app.transport.client import ResponseStream
from serve_app.transport.stream import LocalStream
from tests.support.app_config import FixedPool, app_config
from tests.support.http_client import Client
from tests.support.streams import Script, Wait

pytestmark = pytest.mark.usefixtures("slow_pings")
CONFIG = app_config(limits={"request_timeout_s": 100})
START = ResponseStart(200, [(b"content-type", b"text/event-stream"), (b"content-length", b"9"), (b"server", b"x")])
PLANNED = {"enabled": True, "reason": "électricité"}
HEADER = b'{"enabled": true, "reason": "\\u00e9lectricit\\u00e9"}'
Items = Sequence[ResponseStart | bytes | Failure | Wait | Exception]


class Exchange:
    """One request to the eco tier with a scripted replica, and the client that takes the response."""

    def __init__(self, items: Items, streaming: bool, state: TierState | None = None) -> None:
        self.script: Script[ResponseStart | bytes | Failure] = Script(items)
        self.pool = FixedPool({"eco": state or TierState(running=1)})
        arrived_s = asyncio.get_running_loop().time()
        stream: ResponseStream = LocalStream(self.script.stream())
        self.exchange = OpenAIExchange("eco", PLANNED, "r1", streaming, stream, CONFIG, self.pool, arrived_s=arrived_s)
        self.client = Client()

    async def run(self) -> Client:
        await self.client.read(await self.exchange.respond())
        return self.client


def last_lines(client: Client) -> tuple[bytes, bytes]:
    """The last two events of a stream."""
    assert client.body.endswith(b"\n\n")
    *_, error, done = client.body.removesuffix(b"\n\n").split(b"\n\n")
    return error, done


def late_error(client: Client) -> dict[str, Any]:
    """The error that ends a stream, in vLLM's form."""
    error, done = last_lines(client)
    assert done == b"data: [DONE]"
    message: dict[str, Any] = orjson.loads(error.removeprefix(b"data: "))["error"]
    return message


async def test_the_engines_response_is_passed_on_with_our_headers() -> None:
    start = ResponseStart(422, [(b"content-type", b"application/json"), (b"Content-Length", b"9"), (b"x-own", b"1")])
    exchange = Exchange([start, b'{"a":', b"1}"], streaming=False)
    client = await exchange.run()
    assert (client.status, client.body) == (422, b'{"a":1}')
    assert client.headers == [
        (b"content-type", b"application/json"),
        (b"x-own", b"1"),
        (b"x-power-lever-tier", b"eco"),
        (b"x-power-lever-spec", HEADER),
        (b"x-request-id", b"r1"),
    ]
    assert exchange.script.closed


async def test_a_stream_is_passed_on_piece_by_piece_with_headers_against_buffering() -> None:
    exchange = Exchange([START, b"data: 1\n\n", Wait(1), b"data: 2\n\n", b"data: [DONE]\n\n"], streaming=True)
    client = await exchange.run()
    assert client.pieces == [b"data: 1\n\n", b"data: 2\n\n", b"data: [DONE]\n\n"]
    assert dict(client.headers) == {
        b"content-type": b"text/event-stream",
        b"x-power-lever-tier": b"eco",
        b"x-power-lever-spec": HEADER,
        b"x-request-id": b"r1",
        b"cache-control": b"no-store",
        b"x-accel-buffering": b"no",
    }


async def test_a_stream_that_must_wait_begins_with_pings() -> None:
    exchange = Exchange([Wait(7), START, b"data: 1\n\n"], streaming=True, state=TierState(starting=1))
    began = asyncio.get_running_loop().time()
    client = await exchange.run()
    assert client.status == 200
    assert dict(client.headers)[b"content-type"] == b"text/event-stream"
    assert client.pieces[-1] == b"data: 1\n\n"
    assert set(client.pieces[:-1]) == {PING}
    # The response begins after one interval of 2 s, and no silence is longer than one.
    times = [time - began for time in client.times_s]
    assert times[0] == pytest.approx(2)
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) <= 2.001


async def test_frequent_pings_do_not_begin_a_stream_before_its_engine_could_refuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("serve_app.api.openai.response.PING_EVERY_S", 0.4)
    # A proxy needs frequent pings. A refusal within two seconds must stay an HTTP status all the same.
    refused = ResponseStart(400, [(b"content-type", b"application/json")])
    client = await Exchange([Wait(1.5), refused, b"{}"], streaming=True).run()
    assert (client.status, client.body) == (400, b"{}")


async def test_an_answer_that_is_not_streamed_may_take_its_time() -> None:
    start = ResponseStart(200, [(b"content-type", b"application/json")])
    client = await Exchange([Wait(30), start, Wait(30), b"{}"], streaming=False, state=TierState()).run()
    assert (client.status, client.body) == (200, b"{}")


async def test_a_silent_stream_gets_pings() -> None:
    client = await Exchange([START, b"data: 1\n\n", Wait(5), b"data: 2\n\n"], streaming=True).run()
    assert client.pieces == [b"data: 1\n\n", PING, PING, b"data: 2\n\n"]


async def test_an_engines_error_after_an_early_200_goes_into_the_stream_as_one_data_line() -> None:
    refused = ResponseStart(400, [(b"content-type", b"application/json")])
    error = b'{"error": {\n"message": "too long"}}'
    client = await Exchange([Wait(3), refused, error[:5], Wait(20), error[5:]], streaming=True).run()
    assert client.status == 200
    error_line, done = last_lines(client)
    assert orjson.loads(error_line.removeprefix(b"data: ")) == {"error": {"message": "too long"}}
    assert b"\n" not in error_line
    assert done == b"data: [DONE]"


async def test_a_503_of_the_engine_gets_retry_after() -> None:
    start = ResponseStart(503, [(b"content-type", b"application/json"), (b"Retry-After", b"1")])
    client = await Exchange([start, b"{}"], streaming=False).run()
    assert [value for key, value in client.headers if key.lower() == b"retry-after"] == [b"5"]


async def test_a_refusal_before_the_response_raises_and_closes_the_source() -> None:
    exchange = Exchange([overloaded("too many requests")], streaming=True)
    with pytest.raises(ApiError, match="too many requests"):
        await exchange.exchange.respond()
    assert exchange.script.closed


@pytest.mark.parametrize("begun", [[Wait(3)], [START, b"data: 1\n\n"]], ids=["after an early 200", "midway"])
async def test_a_lost_replica_ends_a_stream_with_an_error_that_sdks_raise(begun: list[Any]) -> None:
    lost = ApiError("replica_lost", "went away", status=503, retryable=True)
    client = await Exchange([*begun, lost], streaming=True).run()
    error = {"code": "replica_lost", "message": "went away", "retryable": True, "request_id": "r1"}
    assert late_error(client) == error


@pytest.mark.parametrize("begun", [[Wait(3)], [START, b"data: 1\n\n"]], ids=["after an early 200", "midway"])
async def test_a_failure_that_the_replica_sends_ends_a_stream_with_that_error(begun: list[Any]) -> None:
    client = await Exchange([*begun, Failure("engine_failed", "no more", 500, True)], streaming=True).run()
    error = {"code": "engine_failed", "message": "no more", "retryable": True, "request_id": "r1"}
    assert late_error(client) == error


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_failure_that_the_replica_sends_before_its_answer_is_an_http_error(streaming: bool) -> None:
    exchange = Exchange([Failure("engine_dead", "the engine has died", 503, True)], streaming)
    with pytest.raises(ApiError, match="the engine has died") as error:
        await exchange.exchange.respond()
    assert (error.value.code, error.value.status, error.value.retryable) == ("engine_dead", 503, True)
    assert exchange.script.closed


async def test_a_lost_replica_cuts_an_answer_that_is_not_streamed() -> None:
    exchange = Exchange([START, b'{"half', ApiError("replica_lost", "gone", status=503)], streaming=False)
    response = await exchange.exchange.respond()
    with pytest.raises(ApiError, match="gone"):
        await exchange.client.read(response)
    assert exchange.script.closed


async def test_a_replica_without_a_response_is_a_502() -> None:
    with pytest.raises(ApiError, match="ended early") as error:
        await Exchange([], streaming=False).exchange.respond()
    assert (error.value.status, error.value.retryable) == (502, True)


async def test_a_tier_that_gave_up_starting_is_a_503() -> None:
    state = TierState(failed=True, reason="step small-ngram failed: no memory")
    exchange = Exchange([Wait(10_000)], streaming=False, state=state)
    with pytest.raises(ApiError, match="cannot start: step small-ngram failed: no memory") as error:
        await exchange.exchange.respond()
    assert (error.value.status, error.value.code) == (503, "tier_unavailable")
    assert exchange.script.closed


@pytest.mark.parametrize("streaming", [True, False])
async def test_no_wait_is_longer_than_the_requests_timeout(streaming: bool) -> None:
    exchange = Exchange([Wait(10_000)], streaming, TierState(starting=1))
    began = asyncio.get_running_loop().time()
    if streaming:
        client = await exchange.run()
        assert late_error(client)["code"] == "timeout"
    else:
        with pytest.raises(ApiError, match="not complete after 100 s"):
            await exchange.exchange.respond()
    assert asyncio.get_running_loop().time() - began == pytest.approx(102)
    assert exchange.script.closed


@pytest.mark.parametrize("items", [[Wait(10_000)], [START, b"data: 1\n\n", Wait(10_000)]], ids=["waiting", "midway"])
async def test_a_client_that_leaves_closes_the_source(items: list[Any]) -> None:
    exchange = Exchange(items, streaming=True)
    running = asyncio.ensure_future(exchange.run())
    await asyncio.sleep(5)
    assert not exchange.script.closed
    exchange.client.leave()
    await running
    assert exchange.script.closed


async def test_a_stream_that_exceeds_the_request_timeout_is_ended() -> None:
    flowing: list[Any] = [Wait(1), b"data: 1\n\n"] * 200
    exchange = Exchange([START, *flowing], streaming=True)
    client = await exchange.run()
    assert late_error(client)["code"] == "timeout"
    assert 99 <= len(client.pieces) <= 102
    assert exchange.script.closed


@pytest.mark.parametrize("items", [[Wait(10_000)], [START, b"data: 1\n\n"]], ids=["late", "at once"])
async def test_a_client_that_left_before_the_response_began_closes_the_source(items: list[Any]) -> None:
    exchange = Exchange(items, streaming=True)
    exchange.client.leave()
    await exchange.run()
    assert exchange.script.closed


async def test_a_client_that_leaves_an_unstreamed_wait_closes_the_source() -> None:
    exchange = Exchange([Wait(10_000)], streaming=False)
    responding = asyncio.ensure_future(exchange.exchange.respond())
    await asyncio.sleep(5)
    responding.cancel()
    await asyncio.gather(responding, return_exceptions=True)
    assert exchange.script.closed
