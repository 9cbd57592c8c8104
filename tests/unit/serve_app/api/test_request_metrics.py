"""What requests and plans add to the series: each request once, however it ends."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.types import Message

from router.observation import TierState
from serve_app.api import request_metrics
from tests.support.app_config import FixedPool, app_config
from tests.support.local_ingress import LocalIngress

REQUESTS = "power_lever_requests_total"
DURATION = "gen_ai_server_request_duration_seconds"
FIRST_TOKEN = "gen_ai_server_time_to_first_token_seconds"
EACH_TOKEN = "gen_ai_server_time_per_output_token_seconds"
USAGE = "gen_ai_client_token_usage"
ASKED = {"prompt": "What is the capital of France?", "mode": "manual", "power": 10}
CHAT = {"model": "eco", "messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 5}


@pytest.fixture
def ingress(monkeypatch: pytest.MonkeyPatch) -> LocalIngress:
    return LocalIngress(app_config(), monkeypatch)


def metrics_of(response: httpx.Response) -> dict[str, Any]:
    """The data of the `metrics` event."""
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
    [data] = [event["data"] for event in events if event["type"] == "metrics"]
    return dict(data)


async def test_an_answer_adds_its_tokens_times_and_what_it_took(ingress: LocalIngress) -> None:
    response = await ingress.post("/api/inference", ASKED | {"prompt": "What is the capital? stub:tokens=5"})
    told, meter, eco = metrics_of(response), ingress.meter, ("eco", "simple_question")
    assert meter.counters[REQUESTS] == {("/api/inference", *eco, "ok"): 1}
    assert meter.counters["power_lever_completion_tokens_total"] == {eco: 5}
    assert meter.counters["power_lever_prompt_tokens_total"] == {eco: told["prompt_tokens"]}
    assert meter.histograms[USAGE][("eco", "chat", "output")] == [5]
    assert meter.histograms[USAGE][("eco", "chat", "input")] == [told["prompt_tokens"]]
    [first_s] = meter.histograms[FIRST_TOKEN][("eco", "chat")]
    [each_s] = meter.histograms[EACH_TOKEN][("eco", "chat")]
    [whole_s] = meter.histograms[DURATION][("eco", "chat", "none")]
    assert first_s == pytest.approx(told["ttft_ms"] / 1000)
    assert first_s + 4 * each_s == pytest.approx(told["total_ms"] / 1000)
    assert whole_s >= told["total_ms"] / 1000 - 0.001
    baseline = told["savings"]["counterfactual"]
    for name, wh_or, factor in (
        ("power_lever_energy_joules_total", "wh", 3600),
        ("power_lever_water_liters_total", "water_l", 1),
        ("power_lever_co2_grams_total", "co2_g", 1),
        ("power_lever_cost_usd_total", "cost_usd", 1),
    ):
        share = told["energy"]["wh"] if wh_or == "wh" else told[wh_or]
        full = told["energy"]["full_wh"] if wh_or == "wh" else told["full"][wh_or]
        assert meter.counters[name] == {
            ("eco", "share"): pytest.approx(share * factor),
            ("eco", "full"): pytest.approx(full * factor),
            ("eco", "baseline"): pytest.approx(baseline[wh_or] * factor),
        }


@pytest.mark.parametrize(
    ("path", "operation", "body"),
    [
        ("/v1/chat/completions", "chat", CHAT),
        ("/v1/chat/completions", "chat", CHAT | {"stream": True}),
        ("/v1/completions", "text_completion", {"model": "eco", "prompt": "What is the capital?", "max_tokens": 5}),
        ("/v1/responses", "chat", {"model": "eco", "input": "What is the capital?", "max_output_tokens": 5}),
        ("/v1/messages", "chat", CHAT | {"stream": True}),
    ],
)
async def test_the_v1_routes_add_the_same(
    ingress: LocalIngress, path: str, operation: str, body: dict[str, Any]
) -> None:
    assert (await ingress.post(path, body)).status_code == 200
    meter = ingress.meter
    assert meter.counters[REQUESTS] == {(path, "eco", "simple_question", "ok"): 1}
    assert meter.counters["power_lever_completion_tokens_total"] == {("eco", "simple_question"): 5}
    assert set(meter.histograms[FIRST_TOKEN]) == set(meter.histograms[EACH_TOKEN]) == {("eco", operation)}
    assert meter.counters["power_lever_energy_joules_total"]["eco", "share"] > 0


async def test_a_count_of_tokens_is_a_request_without_an_answer(ingress: LocalIngress) -> None:
    body = {key: CHAT[key] for key in ("model", "messages")}
    assert (await ingress.post("/v1/messages/count_tokens", body)).status_code == 200
    key = ("/v1/messages/count_tokens", "eco", "simple_question", "ok")
    assert ingress.meter.counters == {
        REQUESTS: {key: 1},
        "power_lever_plans_total": {("manual", "eco", "simple_question"): 1},
    }
    assert set(ingress.meter.histograms[DURATION]) == {("eco", "count_tokens", "none")}


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/api/inference", {"prompt": ""}, "invalid_request"),
        ("/api/inference", [], "invalid_request"),
        ("/v1/chat/completions", CHAT | {"no_such_field": 1}, "invalid_request"),
        ("/v1/chat/completions", CHAT | {"model": "gpt-9"}, "model_not_found"),
        ("/v1/messages", {"no_such_field": 1}, "invalid_request"),
    ],
)
async def test_a_refused_request_counts_by_its_error_and_has_no_tier(
    ingress: LocalIngress, path: str, body: Any, code: str
) -> None:
    response = await ingress.post(path, body)
    assert response.json()["error"]["code"] == code
    assert ingress.meter.counters == {REQUESTS: {(path, "none", "none", code): 1}}
    [(key, values)] = ingress.meter.histograms[DURATION].items()
    assert (key, len(values)) == (("none", "chat", code), 1)


async def test_a_request_that_the_engine_refuses_counts_for_its_tier(ingress: LocalIngress) -> None:
    response = await ingress.post("/v1/messages", {})
    assert response.json()["error"]["code"] == "bad_request"
    [(route, tier, _, code)] = ingress.meter.counters[REQUESTS]
    assert (route, code) == ("/v1/messages", "bad_request")
    assert tier != "none"
    assert set(ingress.meter.counters) == {REQUESTS, "power_lever_plans_total"}


async def test_a_stream_that_fails_counts_by_its_error_though_its_status_was_200(ingress: LocalIngress) -> None:
    response = await ingress.post("/api/inference", ASKED | {"prompt": "What is the capital? stub:fail=3"})
    assert response.status_code == 200
    assert ingress.meter.counters[REQUESTS] == {("/api/inference", "eco", "simple_question", "engine_failed"): 1}
    assert FIRST_TOKEN not in ingress.meter.histograms


@pytest.mark.parametrize(
    ("state", "code"), [({"draining": True}, "stopping"), ({"_limit": 0}, "overloaded")], ids=lambda value: str(value)
)
async def test_a_request_that_is_not_let_in_counts(ingress: LocalIngress, state: dict[str, Any], code: str) -> None:
    for name, value in state.items():
        setattr(ingress.ingress._open, name, value)
    assert (await ingress.post("/api/inference", ASKED)).status_code == 503
    assert ingress.meter.counters == {REQUESTS: {("/api/inference", "none", "none", code): 1}}


async def test_the_front_ends_stub_says_nothing_of_a_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    ingress = LocalIngress(app_config(allow_mock=True), monkeypatch)
    await ingress.post("/api/inference", ASKED | {"mock": True, "max_tokens": 3})
    assert set(ingress.meter.counters) == {REQUESTS, "power_lever_plans_total"}
    assert ingress.meter.counters[REQUESTS] == {("/api/inference", "eco", "simple_question", "ok"): 1}


async def test_a_client_that_leaves_a_stream_counts_as_that(ingress: LocalIngress) -> None:
    body = json.dumps(ASKED | {"prompt": "What is the capital? stub:rate=1"}).encode()
    began = asyncio.Event()

    async def receive() -> Message:
        if not began.is_set() and not received:
            received.append(True)
            return {"type": "http.request", "body": body, "more_body": False}
        await began.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if b'"token"' in message.get("body", b""):
            began.set()

    received: list[bool] = []
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "method": "POST",
        "path": "/api/inference",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
    }
    await ingress.app(scope, receive, send)
    assert ingress.meter.counters[REQUESTS] == {("/api/inference", "eco", "simple_question", "client_left"): 1}
    assert set(ingress.meter.histograms[DURATION]) == {("eco", "chat", "client_left")}


async def test_requests_that_only_read_are_not_counted(ingress: LocalIngress) -> None:
    async with ingress.http() as http:
        for path in ("/api/tiers", "/healthz", "/v1/models", "/api/inference"):
            await http.get(path)
    assert ingress.meter.counters == {}


async def test_a_plan_is_counted_with_the_limits_that_it_breaks(ingress: LocalIngress) -> None:
    limits = {"max_cost_usd": 1e-12, "max_energy_wh": 1e-12, "max_total_ms": 1e9}
    await ingress.post("/api/inference", {"prompt": "Write a sort in Rust.", "constraints": limits})
    meter = ingress.meter
    [(mode, tier, category)] = meter.counters["power_lever_plans_total"]
    assert (mode, category) == ("auto", "general_reasoning")
    broken = meter.counters["power_lever_plan_limits_broken_total"]
    assert broken == {("max_cost_usd", tier): 1, ("max_energy_wh", tier): 1}
    assert [len(values) for values in meter.histograms["power_lever_plan_duration_seconds"].values()] == [1]


async def test_a_request_that_another_tier_takes_is_one_request_with_two_plans(ingress: LocalIngress) -> None:
    pool = ingress.ingress._pool
    assert isinstance(pool, FixedPool)
    first_tier: list[str] = []
    tiers = ingress.ingress._tiers

    def refused(tier: str, request: Any) -> Any:
        from serve_app.api.errors import ApiError

        if not first_tier:
            first_tier.append(tier)
            raise ApiError("tier_unavailable", f"tier {tier} cannot start: no card", status=503, retryable=True)
        return tiers.generate(tier, request)  # type: ignore[arg-type]

    ingress.ingress._tiers = SimpleNamespace(generate=refused, wake=None)  # type: ignore[assignment]
    pool.set("eco", TierState(running=1))
    response = await ingress.post("/api/inference", {"prompt": "What is the capital of France?"})
    assert metrics_of(response)["finish_reason"]
    [(route, tier, _, code)] = ingress.meter.counters[REQUESTS]
    assert (route, code) == ("/api/inference", "ok")
    assert tier != first_tier[0]
    assert sum(ingress.meter.counters["power_lever_plans_total"].values()) == 2


def test_a_watt_hour_is_3600_joules() -> None:
    assert request_metrics.JOULES_PER_WH == 3600
