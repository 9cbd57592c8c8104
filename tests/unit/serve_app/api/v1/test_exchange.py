"""How the replica's response to a `/v1` request is passed on, and its run reported."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest

from router.observation import Observation, TierState
from router.plan import plan
from router.request import InferenceRequest
from router.runs.summary import RunReport
from serve_app.api.errors import ApiError, ErrorForm, Failure, overloaded
from serve_app.api.spec_view import planned_spec
from serve_app.api.sse import PING
from serve_app.api.v1.exchange import V1Exchange
from serve_app.engine.interface import Finished, HttpRun, SpecStats
from serve_app.transport.asgi_call import ResponseStart
from serve_app.transport.resuming import RepeatingStream
from serve_app.transport.stream import LocalStream
from tests.support.app_config import FixedPool, app_config
from tests.support.http_client import Client
from tests.support.streams import Script, Wait

pytestmark = pytest.mark.usefixtures("slow_pings")
CONFIG = app_config(limits={"request_timeout_s": 100})
START = ResponseStart(200, [(b"content-type", b"text/event-stream"), (b"content-length", b"9"), (b"server", b"x")])
ECO = plan(InferenceRequest(prompt="Hi", mode="manual", power=0), Observation(), CONFIG)
PLAN = replace(ECO, no_drafts_reason="électricité")
HEADER = json.dumps(planned_spec(PLAN.entry, PLAN.spec, PLAN.drafts, PLAN.no_drafts_reason)).encode()
Items = Sequence[ResponseStart | bytes | HttpRun | Failure | Wait | Exception]


class Exchange:
    """One request to the eco tier with a scripted replica, and the client that takes the response."""

    def __init__(
        self, items: Items, streaming: bool, state: TierState | None = None, form: ErrorForm = "openai"
    ) -> None:
        self.script: Script[ResponseStart | bytes | HttpRun | Failure] = Script(items)
        self.reports: list[RunReport] = []
        self.pool = FixedPool({"eco": state or TierState(running=1)})
        arrived_s = asyncio.get_running_loop().time()
        stream = RepeatingStream(lambda: LocalStream(self.script.stream()), math.inf, asyncio.get_running_loop().time)
        self.exchange = V1Exchange(
            form, PLAN, "r1", streaming, stream, CONFIG, self.pool, arrived_s, self.reports.append, "d1"
        )
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
        (b"x-power-lever-entry", PLAN.entry.name.encode()),
        (b"x-power-lever-spec", HEADER),
        (b"x-request-id", b"r1"),
        (b"x-power-lever-decision", b"d1"),
    ]
    assert exchange.script.closed


async def test_a_stream_is_passed_on_piece_by_piece_with_headers_against_buffering() -> None:
    exchange = Exchange([START, b"data: 1\n\n", Wait(1), b"data: 2\n\n", b"data: [DONE]\n\n"], streaming=True)
    client = await exchange.run()
    assert client.pieces == [b"data: 1\n\n", b"data: 2\n\n", b"data: [DONE]\n\n"]
    assert dict(client.headers) == {
        b"content-type": b"text/event-stream",
        b"x-power-lever-tier": b"eco",
        b"x-power-lever-entry": PLAN.entry.name.encode(),
        b"x-power-lever-decision": b"d1",
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
    monkeypatch.setattr("serve_app.api.v1.exchange.PING_EVERY_S", 0.4)
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
    exchange = Exchange([Failure("engine_failed", "no more", 500, True)], streaming)
    with pytest.raises(ApiError, match="no more") as error:
        await exchange.exchange.respond()
    assert (error.value.code, error.value.status, error.value.retryable) == ("engine_failed", 500, True)
    assert exchange.script.closed


async def test_engines_that_die_one_after_the_other_are_an_http_error_or_one_in_the_stream() -> None:
    dead = [Failure("engine_dead", "the engine has died", 503, True)]
    with pytest.raises(ApiError, match="the engine has died") as error:
        await Exchange(dead, streaming=False).exchange.respond()
    assert (error.value.code, error.value.status, error.value.retryable) == ("engine_dead", 503, True)
    client = await Exchange(dead, streaming=True).run()
    assert late_error(client)["code"] == "engine_dead"


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


# --- runs ---

RUN = HttpRun(Finished("stop", 7, 20, 250.0, SpecStats(4, 12, 9), 0.75), 3.0, 2.0, completion_tokens=20)


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_finished_run_is_reported_with_the_times_that_the_client_saw(streaming: bool) -> None:
    exchange = Exchange([START, Wait(4), b"data: 1\n\n", RUN, b"data: [DONE]\n\n"], streaming)
    client = await exchange.run()
    assert [piece for piece in client.pieces if piece != PING] == [b"data: 1\n\n", b"data: [DONE]\n\n"]
    [report] = exchange.reports
    assert (report.tier, report.category) == ("eco", "simple_question")
    assert (report.completion_tokens, report.draft_tokens, report.accepted_tokens) == (20, 12, 9)
    assert report.finish_reason == "stop"
    assert report.total_ms == pytest.approx(4000)
    assert report.ttft_ms == pytest.approx(2000)
    assert report.queue_ms == pytest.approx(1000 + 250)
    assert report.tokens_per_s == pytest.approx(20 / 2.75, abs=0.001)
    assert report.energy_wh > 0


async def test_the_usage_says_who_answered_and_what_it_took() -> None:
    usage = {"usage": {"completion_tokens": 20}}
    body = orjson.dumps(usage)
    client = await Exchange([START, RUN, body], streaming=False).run()
    told = orjson.loads(client.body)["usage"]
    assert told["completion_tokens"] == 20
    assert (told["power_lever"]["tier"], told["power_lever"]["entry"]) == ("eco", PLAN.entry.name)
    assert told["power_lever"]["busy_s"] == 0.75
    assert told["power_lever"]["energy"]["wh"] == pytest.approx(CONFIG.tiers["eco"].active_watts * 0.75 / 3600)
    without_a_run = await Exchange([START, body], streaming=False).run()
    assert orjson.loads(without_a_run.body) == usage


async def test_a_run_is_reported_after_a_late_start_too() -> None:
    exchange = Exchange([Wait(3), START, RUN, b"data: [DONE]\n\n"], streaming=True)
    await exchange.run()
    assert [report.completion_tokens for report in exchange.reports] == [20]


@pytest.mark.parametrize("items", [[START, b"{}"], [ResponseStart(400, []), b"{}"]], ids=["count", "refusal"])
async def test_a_response_without_a_run_is_not_reported(items: list[Any]) -> None:
    exchange = Exchange(items, streaming=False)
    await exchange.run()
    assert exchange.reports == []


# --- errors in each API's form ---

VLLMS = b'{"type":"error","error":{"type":"BadRequestError","message":"too\\nlong"}}'
REFUSED = ResponseStart(400, [(b"content-type", b"application/json")])


async def test_an_engines_refusal_has_anthropics_form() -> None:
    for body in (VLLMS, b'{"error":{"message":"too\\nlong","code":400}}'):
        client = await Exchange([REFUSED, body[:9], body[9:]], streaming=True, form="anthropic").run()
        error = {"code": "bad_request", "message": "too\nlong", "retryable": False, "request_id": "r1"}
        assert client.status == 400
        assert orjson.loads(client.body) == {
            "type": "error",
            "error": error | {"type": "invalid_request_error"},
            "request_id": "r1",
        }


async def test_an_engines_refusal_that_is_no_json_is_an_error_all_the_same() -> None:
    client = await Exchange([ResponseStart(500, []), b"Internal Server Error"], streaming=False, form="anthropic").run()
    assert client.status == 500
    body = orjson.loads(client.body)["error"]
    assert (body["type"], body["message"], body["retryable"]) == ("api_error", "Internal Server Error", True)


@pytest.mark.parametrize(
    "items",
    [[Wait(3), REFUSED, VLLMS], [START, b"x", Failure("bad_request", "too\nlong", 400, False)]],
    ids=["late", "midway"],
)
@pytest.mark.parametrize("form", ["anthropic", "responses"])
async def test_an_error_in_a_stream_is_the_apis_own_event(items: list[Any], form: ErrorForm) -> None:
    client = await Exchange(items, streaming=True, form=form).run()
    event, data = client.pieces[-1].removesuffix(b"\n\n").split(b"\n")
    assert event == b"event: error"
    body = orjson.loads(data.removeprefix(b"data: "))
    assert (body["type"], body["error"]["message"]) == ("error", "too\nlong")
    if form == "responses":
        assert body["message"] == "too\nlong"
        assert {"code", "param", "sequence_number"} < body.keys()
