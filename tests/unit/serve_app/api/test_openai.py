"""The OpenAI routes: which tier answers, and how the replica's response is passed on."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from starlette.requests import Request

from router.observation import Observation, TierState
from router.plan import plan
from router.request import InferenceRequest
from router.runs.summary import RunSummary
from router.spec_params import NO_DRAFTS, SpecParams
from serve_app.api.errors import ApiError, Failure, overloaded
from serve_app.api.openai import Choice, OpenAIExchange, choose, engine_call
from serve_app.api.sse import PING
from serve_app.config import AppConfig
from serve_app.transport.asgi_call import ResponseStart
from serve_app.transport.inbox import ReadAhead
from tests.support.app_config import FixedPool, app_config
from tests.support.http_client import Client
from tests.support.streams import Script, Wait

CONFIG = app_config(relay={"status_every_s": 2, "ping_every_s": 15}, limits={"request_timeout_s": 100})
HARD = (
    "Prove that every bounded sequence of real numbers has a convergent subsequence, then derive the convergence rate "
    "of gradient descent on a strongly convex function and compare both arguments step by step."
)
START = ResponseStart(200, [(b"content-type", b"text/event-stream"), (b"content-length", b"9"), (b"server", b"x")])
Items = Sequence[ResponseStart | bytes | Failure | Wait | Exception]


def tier_of(text: str) -> str:
    return plan(InferenceRequest(prompt=text), Observation(), CONFIG).tier


def pick(body: Any) -> str:
    return choose(body, CONFIG, Observation()).tier


def test_the_prompts_below_tell_apart_what_is_read() -> None:
    assert tier_of(HARD) != tier_of(" ") == tier_of("Hi")


@pytest.mark.parametrize("name", ["eco", "balanced", "performance", "ultra"])
def test_a_tiers_name_picks_it_whatever_the_prompt(name: str) -> None:
    assert pick({"model": name, "prompt": HARD}) == name


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": HARD},
        {"prompt": ["Hi", HARD]},
        {"messages": [{"role": "user", "content": HARD}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": HARD}]}]},
        {
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello."},
                {"role": "user", "content": [{"type": "image_url", "image_url": {}}, {"type": "text", "text": HARD}]},
            ]
        },
    ],
    ids=["prompt", "prompts", "chat", "parts", "image and text"],
)
@pytest.mark.parametrize("model", [{}, {"model": "auto"}], ids=["no model", "auto"])
def test_auto_judges_the_last_user_text_in_every_form_that_openai_allows(
    body: dict[str, Any], model: dict[str, str]
) -> None:
    assert pick(body | model) == tier_of(HARD)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": [1, 2, 3]},
        {"prompt": None},
        {"messages": []},
        {"messages": ["Hi"]},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "system", "content": HARD}]},
    ],
)
def test_a_body_without_text_to_judge_is_left_to_the_engine_to_refuse(body: dict[str, Any]) -> None:
    assert pick({"model": "auto"} | body) == tier_of(" ")


@pytest.mark.parametrize("model", ["gpt-4o", "", "Eco"])
def test_an_unknown_model_is_a_404_that_names_the_allowed_ones(model: object) -> None:
    with pytest.raises(ApiError) as error:
        pick({"model": model, "prompt": "Hi"})
    assert (error.value.status, error.value.code) == (404, "model_not_found")
    assert error.value.message == f"model: got {model!r}, allowed are auto, eco, balanced, performance, ultra"


SCOPE = {"type": "http", "method": "POST", "path": "/v1/completions", "root_path": "", "headers": []}


def test_only_the_model_and_the_speculation_are_rewritten_on_the_way_to_the_engine() -> None:
    body = {"model": "auto", "prompt": "Hi", "tools": [{"x": 1}], "stream": True}
    choice = Choice("ultra", SpecParams(k=3, tau=0.5), "code")
    call = engine_call(Request(SCOPE), body | {"spec": {"k": 3}}, choice, "r1")
    assert (call.method, call.path) == ("POST", "/v1/completions")
    arguments = {"speculation_k": 3, "speculation_tau": 0.5, "speculation_category": "code"}
    assert orjson.loads(call.body) == body | {"model": "ultra", "vllm_xargs": arguments}
    assert (b"x-request-id", b"r1") in call.headers
    assert (b"content-length", str(len(call.body)).encode()) in call.headers


def test_a_route_prefix_is_not_the_engines_business() -> None:
    scope = SCOPE | {"path": "/b/v1/completions", "root_path": "/b"}
    assert engine_call(Request(scope), {}, Choice("eco", NO_DRAFTS, "code"), "r1").path == "/v1/completions"


@pytest.mark.parametrize(
    ("spec", "k", "tau"),
    [
        (None, "auto", 0.3),
        ({}, "auto", 0.3),
        ({"k": 2}, 2, 0.3),
        ({"k": 30}, 10, 0.3),
        ({"k": "auto", "tau": 0.9}, "auto", 0.9),
        ({"k": 0}, 0, 0.0),
        ({"enabled": False, "k": 4}, 0, 0.0),
    ],
)
def test_spec_in_an_openai_body_is_what_it_is_in_ours(spec: Any, k: int | str, tau: float) -> None:
    choice = choose(
        {"model": "eco", "prompt": "def f(x):\n    return x  # fix this code", "spec": spec}, CONFIG, Observation()
    )
    assert (choice.spec.k, choice.spec.tau, choice.category) == (k, tau, "code")


def test_drafts_that_past_runs_call_waste_are_not_made_here_either() -> None:
    waste = RunSummary(runs=50, draft_tokens=4000, accepted_tokens=20)
    seen = Observation({"eco": TierState(running=1, recent_by_category={"simple_question": waste})})
    body = {"model": "eco", "prompt": "Hi"}
    assert choose(body, CONFIG, seen).spec.k == 0
    assert choose(body | {"spec": {"k": "auto"}}, CONFIG, seen).spec.k == "auto"
    assert choose(body | {"model": "balanced"}, CONFIG, seen).spec.k == "auto"


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"k": -1}, "spec.k"),
        ({"k": "many"}, "spec.k"),
        ({"tau": 2}, "spec.tau"),
        ({"tow": 1}, "spec.tow: unknown key"),
        ([1], "spec"),
        ("auto", "spec"),
    ],
)
def test_a_wrong_spec_in_an_openai_body_is_a_422_that_names_it(spec: Any, problem: str) -> None:
    with pytest.raises(ApiError, match=problem) as error:
        choose({"model": "eco", "prompt": "Hi", "spec": spec}, CONFIG, Observation())
    assert error.value.status == 422


BIASED: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "logit_bias": {"5": 1}}


def test_auto_sends_what_drafts_exclude_to_a_tier_that_does_not_draft() -> None:
    assert pick({**BIASED, "model": "auto"}) == "ultra"
    fallen = Observation({"eco": TierState(running=1, active_entry="small-alone")})
    assert choose(BIASED, CONFIG, fallen).tier == "eco"


def test_a_named_tier_that_drafts_refuses_it_and_names_the_tiers_that_do_not() -> None:
    with pytest.raises(ApiError) as error:
        pick({**BIASED, "model": "eco", "spec": {"enabled": False}})
    assert error.value.status == 400
    assert error.value.message == (
        "logit_bias: not with speculative decoding, which the eco tier uses; without it: ultra, or model auto"
    )
    assert pick({**BIASED, "model": "ultra"}) == "ultra"


def test_where_every_tier_drafts_it_is_refused_with_that_reason() -> None:
    nothing = Observation({"ultra": TierState(failed=True)})
    for model in ("auto", "eco"):
        with pytest.raises(ApiError, match="logit_bias: not with speculative decoding, which every tier uses now"):
            choose({**BIASED, "model": model}, CONFIG, nothing)


class Exchange:
    """One request to the eco tier with a scripted replica, and the client that takes the response."""

    def __init__(
        self, items: Items, streaming: bool, state: TierState | None = None, config: AppConfig = CONFIG
    ) -> None:
        self.script: Script[ResponseStart | bytes | Failure] = Script(items)
        self.pool = FixedPool({"eco": state or TierState(running=1)})
        arrived_s = asyncio.get_running_loop().time()
        inbox = ReadAhead(self.script.stream())
        self.exchange = OpenAIExchange("eco", "r1", streaming, inbox, config, self.pool, arrived_s=arrived_s)
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
    """The error that a stream ends with, as vLLM's do."""
    error, done = last_lines(client)
    assert done == b"data: [DONE]"
    said: dict[str, Any] = orjson.loads(error.removeprefix(b"data: "))["error"]
    return said


async def test_the_engines_response_is_passed_on_with_our_headers() -> None:
    start = ResponseStart(422, [(b"content-type", b"application/json"), (b"Content-Length", b"9"), (b"x-own", b"1")])
    exchange = Exchange([start, b'{"a":', b"1}"], streaming=False)
    client = await exchange.run()
    assert (client.status, client.body) == (422, b'{"a":1}')
    assert client.headers == [
        (b"content-type", b"application/json"),
        (b"x-own", b"1"),
        (b"x-power-lever-tier", b"eco"),
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


async def test_frequent_pings_do_not_make_a_stream_begin_before_its_engine_could_refuse() -> None:
    # A proxy wants pings often; a refusal that comes within the two seconds must stay an HTTP status all the same.
    config = app_config(relay={"status_every_s": 2, "ping_every_s": 0.4})
    refused = ResponseStart(400, [(b"content-type", b"application/json")])
    client = await Exchange([Wait(1.5), refused, b"{}"], streaming=True, config=config).run()
    assert (client.status, client.body) == (400, b"{}")


async def test_an_answer_that_is_not_streamed_is_waited_for() -> None:
    start = ResponseStart(200, [(b"content-type", b"application/json")])
    client = await Exchange([Wait(30), start, Wait(30), b"{}"], streaming=False, state=TierState()).run()
    assert (client.status, client.body) == (200, b"{}")


async def test_a_silent_stream_is_pinged() -> None:
    client = await Exchange([START, b"data: 1\n\n", Wait(40), b"data: 2\n\n"], streaming=True).run()
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


async def test_a_503_of_the_engine_tells_when_to_come_back() -> None:
    start = ResponseStart(503, [(b"content-type", b"application/json"), (b"Retry-After", b"1")])
    client = await Exchange([start, b"{}"], streaming=False).run()
    assert [value for key, value in client.headers if key.lower() == b"retry-after"] == [b"5"]


async def test_a_refusal_before_the_response_raises_and_closes_the_source() -> None:
    exchange = Exchange([overloaded("too many requests", 7)], streaming=True)
    with pytest.raises(ApiError, match="too many requests") as error:
        await exchange.exchange.respond()
    assert error.value.retry_after_s == 7
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


async def test_a_replica_that_answers_nothing_is_an_error() -> None:
    with pytest.raises(ApiError, match="no response") as error:
        await Exchange([], streaming=False).exchange.respond()
    assert (error.value.status, error.value.retryable) == (502, True)


async def test_a_tier_that_gave_up_starting_is_not_waited_for() -> None:
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
        with pytest.raises(ApiError, match="no end after 100 s"):
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


async def test_a_stream_that_flows_past_the_requests_timeout_is_ended() -> None:
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
