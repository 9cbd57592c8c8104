"""Which tier answers a `/v1` request, and what its engine gets."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from starlette.requests import Request

from router.observation import Observation, TierState
from router.plan import Plan, plan
from router.request import InferenceRequest
from router.runs.summary import RunSummary
from serve_app.api.errors import ApiError
from serve_app.api.spec_view import planned_spec
from serve_app.api.v1.anthropic import COUNT_TOKENS, MESSAGES
from serve_app.api.v1.body import V1Api, parse_v1
from serve_app.api.v1.openai import CHAT, COMPLETIONS, RESPONSES
from serve_app.api.v1.planning import engine_call, plan_v1
from tests.support.agent_requests import CLAUDE_CODE, CODEX
from tests.support.app_config import app_config

CONFIG = app_config()
HARD = (
    "Prove that every bounded sequence of real numbers has a convergent subsequence, then derive the convergence rate "
    "of gradient descent on a strongly convex function and compare both arguments step by step."
)


def tier_of(text: str) -> str:
    return plan(InferenceRequest(prompt=text), Observation(), CONFIG).tier


def planned(body: dict[str, Any], observation: Observation | None = None, api: V1Api | None = None) -> Plan:
    api = api or (CHAT if "messages" in body else COMPLETIONS)
    return plan_v1(parse_v1(body, api, CONFIG.limits), observation or Observation(), CONFIG)


def pick(body: Any) -> str:
    return planned(body).tier


def sent(body: dict[str, Any], api: V1Api, path: str = "/v1/chat/completions") -> dict[str, Any]:
    """What the engine gets."""
    checked = parse_v1(body, api, CONFIG.limits, betas=True)
    scope = SCOPE | {"path": path}
    fields: dict[str, Any] = orjson.loads(
        engine_call(Request(scope), checked, plan_v1(checked, Observation(), CONFIG), "r1").body
    )
    return fields


def test_the_hard_prompt_below_gets_another_tier_than_an_empty_one() -> None:
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
def test_auto_classifies_the_last_user_text_in_every_form_of_openais_api(
    body: dict[str, Any], model: dict[str, str]
) -> None:
    assert pick(body | model) == tier_of(HARD)


BLEACH = ("My son swallowed bleach", "Call a doctor.", "And how much of it?")
ROLES = ("user", "assistant", "user")
SAME: list[tuple[V1Api, dict[str, Any]]] = [
    (CHAT, {"messages": [{"role": role, "content": text} for role, text in zip(ROLES, BLEACH, strict=True)]}),
    (
        RESPONSES,
        {
            "input": [
                {"role": role, "content": [{"type": "input_text", "text": text}]}
                for role, text in zip(ROLES, BLEACH, strict=True)
            ]
        },
    ),
    (
        MESSAGES,
        {
            "max_tokens": 9,
            "messages": [
                {"role": role, "content": [{"type": "text", "text": text}]}
                for role, text in zip(ROLES, BLEACH, strict=True)
            ],
        },
    ),
]


@pytest.mark.parametrize(("api", "body"), SAME, ids=["chat", "responses", "messages"])
@pytest.mark.parametrize(
    "own",
    [
        {},
        {"goal": "better"},
        {"constraints": {"max_cost_usd": 1e-9}},
        {"mode": "manual", "power": 95},
        {"mode": "manual"},
        {"speed": 90},
        {"spec": {"k": 2}},
    ],
    ids=str,
)
def test_every_route_has_the_plan_of_api_inference(api: V1Api, body: dict[str, Any], own: dict[str, Any]) -> None:
    chat = [{"role": role, "content": text} for role, text in zip(ROLES, BLEACH, strict=True)]
    expected = plan(InferenceRequest.model_validate({"messages": chat, **own}), Observation(), CONFIG)
    made = planned({"model": "auto"} | body | own, api=api)
    assert (made.tier, made.power, made.speed, made.spec, made.classification, made.broken) == (
        expected.tier,
        expected.power,
        expected.speed,
        expected.spec,
        expected.classification,
        expected.broken,
    )
    assert made.classification.category == "safety_critical"


def test_tools_and_the_system_prompt_count_as_text_that_the_model_reads() -> None:
    short = {"model": "auto", "messages": [{"role": "user", "content": "Hi"}]}
    tools = [{"type": "function", "function": {"name": "f", "description": "A word. " * 500}}]
    system = {"messages": [{"role": "system", "content": "A word. " * 500}, *short["messages"]]}
    for longer in (short | {"tools": tools}, short | system):
        assert planned(longer).decision["prompt_tokens_least"] > planned(short).decision["prompt_tokens_least"] + 300


def test_what_agents_send_is_planned_by_what_the_user_wrote() -> None:
    code = planned(CLAUDE_CODE | {"tools": [], "context_management": None}, api=MESSAGES).classification
    asked = planned({"prompt": "What does setup.py do?"}).classification
    assert code.category == asked.category
    assert (
        planned(CODEX, api=RESPONSES).classification.category
        == planned({"prompt": "And what is in tests?"}).classification.category
    )


@pytest.mark.parametrize("model", ["gpt-4o", "", "Eco"])
def test_an_unknown_model_is_a_404_that_names_the_allowed_ones(model: object) -> None:
    with pytest.raises(ApiError) as error:
        pick({"model": model, "prompt": "Hi"})
    assert (error.value.status, error.value.code) == (404, "model_not_found")
    assert error.value.message == f"model: got {model!r}, allowed are auto, eco, balanced, performance, ultra"


SCOPE = {"type": "http", "method": "POST", "path": "/v1/completions", "root_path": "", "headers": []}


def test_only_the_model_is_rewritten_for_the_engine_and_our_fields_become_its_arguments() -> None:
    body = {"model": "eco", "prompt": "Hi", "stream": True}
    checked = parse_v1(body | {"spec": {"k": 3, "tau": 0.5}, "n": 2}, COMPLETIONS, CONFIG.limits)
    call = engine_call(Request(SCOPE), checked, plan_v1(checked, Observation(), CONFIG), "r1")
    assert (call.method, call.path, call.sequences) == ("POST", "/v1/completions", 2)
    arguments = {"speculation_k": 3, "speculation_tau": 0.5, "speculation_category": "simple_question"}
    fields = orjson.loads(call.body)
    assert arguments.items() <= fields.pop("vllm_xargs").items()
    assert fields == body | {"n": 2}
    assert (b"x-request-id", b"r1") in call.headers
    assert (b"content-length", str(len(call.body)).encode()) in call.headers


def test_the_engine_gets_the_path_without_the_route_prefix() -> None:
    scope = SCOPE | {"path": "/b/v1/completions", "root_path": "/b"}
    body = parse_v1({"prompt": "Hi"}, COMPLETIONS, CONFIG.limits)
    assert engine_call(Request(scope), body, plan_v1(body, Observation(), CONFIG), "r1").path == "/v1/completions"


SAMPLING = ("temperature", "top_p", "max_tokens", "max_completion_tokens", "max_output_tokens")


def test_without_the_speed_dial_vllms_defaults_hold() -> None:
    assert not set(SAMPLING) & sent({"messages": [{"role": "user", "content": "Hi"}]}, CHAT).keys()
    assert not set(SAMPLING) & sent({"input": "Hi"}, RESPONSES).keys()


@pytest.mark.parametrize(
    ("api", "body", "limit"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "Write a poem."}]}, "max_completion_tokens"),
        (COMPLETIONS, {"prompt": "Write a poem."}, "max_tokens"),
        (RESPONSES, {"input": "Write a poem."}, "max_output_tokens"),
    ],
)
def test_the_speed_dial_sets_what_the_client_did_not(api: V1Api, body: dict[str, Any], limit: str) -> None:
    dial = plan(InferenceRequest(prompt="Write a poem.", speed=100), Observation(), CONFIG).sampling
    fields = sent(body | {"speed": 100}, api)
    assert (fields["temperature"], fields["top_p"], fields[limit]) == (dial.temperature, dial.top_p, dial.max_tokens)
    own = {"temperature": 1.5, limit: 7}
    assert own.items() <= sent(body | own | {"speed": 100}, api).items()


def test_an_anthropic_limit_is_cut_to_the_context_and_asks_for_no_room() -> None:
    body = {"model": "eco", "max_tokens": 32_000, "messages": [{"role": "user", "content": "Hi"}]}
    room = planned(body, api=MESSAGES).entry.max_model_len
    assert room < 32_000
    assert sent(body, MESSAGES)["max_tokens"] == room
    assert sent(body | {"max_tokens": 5}, MESSAGES)["max_tokens"] == 5
    assert planned({**body, "model": "auto"}, api=MESSAGES).tier == planned({"prompt": "Hi"}).tier


def test_a_budget_of_thoughts_goes_only_to_a_model_that_thinks() -> None:
    body = {"model": "eco", "max_tokens": 2000, "messages": [{"role": "user", "content": "Hi"}]}
    body["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    assert "thinking" not in sent(body, MESSAGES)
    assert sent(body | {"thinking": {"type": "disabled"}}, MESSAGES)["thinking"] == {"type": "disabled"}
    thinks = app_config()
    entry = thinks.tiers["eco"].chain[0].model_copy(update={"engine_args": {"reasoning_parser": "qwen3"}})
    tier = thinks.tiers["eco"].model_copy(update={"chain": (entry,)})
    config = thinks.model_copy(update={"tiers": {**thinks.tiers, "eco": tier}})
    checked = parse_v1(body, MESSAGES, config.limits)
    call = engine_call(Request(SCOPE), checked, plan_v1(checked, Observation(), config), "r1")
    assert orjson.loads(call.body)["thinking"] == body["thinking"]


def test_a_count_of_tokens_has_no_arguments_for_the_scheduler() -> None:
    fields = sent({"model": "eco", "messages": [{"role": "user", "content": "Hi"}]}, COUNT_TOKENS)
    assert fields == {"model": "eco", "messages": [{"role": "user", "content": "Hi"}]}


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
def test_spec_means_the_same_as_in_api_inference(spec: Any, k: int | str, tau: float) -> None:
    made = planned({"model": "eco", "prompt": "def f(x):\n    return x  # fix this code", "spec": spec})
    assert (made.spec.k, made.spec.tau, made.classification.category) == (k, tau, "code")


def test_past_runs_with_hardly_any_accepted_draft_switch_drafts_off() -> None:
    waste = RunSummary(runs=50, draft_tokens=4000, accepted_tokens=20)
    seen = Observation({"eco": TierState(running=1, recent_by_category={"simple_question": waste})})
    body = {"model": "eco", "prompt": "Hi"}
    assert planned(body, seen).spec.k == 0
    assert planned(body | {"spec": {"k": "auto"}}, seen).spec.k == "auto"
    assert planned(body | {"model": "balanced"}, seen).spec.k == "auto"


def test_what_is_planned_is_shown_as_in_the_config_event() -> None:
    spec = {"k": 3, "tau": "auto", "drafts": "own"}
    made = planned({"model": "eco", "prompt": "Hi", "spec": spec})
    assert planned_spec(made.entry, made.spec, made.drafts, made.no_drafts_reason) == {
        "enabled": True,
        "method": "ngram_gpu",
        "K": 3,
        "k_mode": "fixed",
        "tau": "auto",
        "drafts": {"requested": "own", "used": "ngram", "reason": "the tier's entry has only ngram drafts"},
        "reason": None,
    }


BIASED: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "logit_bias": {"5": 1}}


def test_auto_sends_fields_that_drafts_exclude_to_a_tier_without_drafts() -> None:
    assert pick({**BIASED, "model": "auto"}) == "ultra"
    fallen = Observation({"eco": TierState(running=1, active_entry="small-alone")})
    assert planned(BIASED, fallen).tier == "eco"


def test_a_named_tier_with_drafts_refuses_them_and_names_the_tiers_without() -> None:
    with pytest.raises(ApiError) as error:
        pick({**BIASED, "model": "eco", "spec": {"enabled": False}})
    assert error.value.status == 400
    assert error.value.message == (
        "logit_bias: not allowed with speculative decoding, which tier eco uses; allowed models are ultra and auto"
    )
    assert pick({**BIASED, "model": "ultra"}) == "ultra"


def test_a_named_tier_refuses_them_if_every_tier_drafts_and_auto_waits_for_the_tier_that_may_come_back() -> None:
    nothing = Observation({"ultra": TierState(failed=True)})
    with pytest.raises(ApiError, match=r"logit_bias: not allowed with .* which every tier uses now"):
        planned({**BIASED, "model": "eco"}, nothing)
    assert planned({**BIASED, "model": "auto"}, nothing).tier == "ultra"


def test_a_prompt_that_no_tier_can_hold_is_a_400_that_names_the_nearest() -> None:
    for body in ({"prompt": "word " * 39_000}, {"prompt": [7] * 100_000}, {"prompt": "Hi", "max_tokens": 10**6}):
        with pytest.raises(ApiError, match="comes nearest") as error:
            planned({"model": "auto", **body})
        assert (error.value.status, error.value.code) == (400, "prompt_too_long")


def test_tools_that_a_tier_cannot_hold_send_the_request_to_one_that_can() -> None:
    rooms = {name: CONFIG.entry(name, None).max_model_len for name in CONFIG.tiers}
    assert rooms["eco"] < max(rooms.values())
    tools = [{"type": "function", "function": {"name": "f", "description": "word " * (rooms["eco"] * 8 // 5)}}]
    made = planned({"model": "auto", "messages": [{"role": "user", "content": "Hi"}], "tools": tools})
    assert made.entry.max_model_len > rooms["eco"]


def test_a_count_of_tokens_wakes_no_tier_while_another_is_warm() -> None:
    body = {"model": "auto", "messages": [{"role": "user", "content": "Hi"}]}
    warm = Observation({"performance": TierState(running=1)})
    assert planned(body, warm, COUNT_TOKENS).tier == "performance"
    assert planned(body, None, COUNT_TOKENS).tier == planned({**body, "model": "eco"}, None, COUNT_TOKENS).tier == "eco"
    assert planned({**body, "model": "eco"}, warm, COUNT_TOKENS).tier == "eco"
