"""Which tier answers an OpenAI request, and what its engine gets."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from starlette.requests import Request

from router.observation import Observation, TierState
from router.plan import plan
from router.request import InferenceRequest
from router.runs.summary import RunSummary
from router.spec_params import NO_DRAFTS, SpecParams
from serve_app.api.errors import ApiError
from serve_app.api.openai.tier_choice import Choice, choose, engine_call
from tests.support.app_config import app_config

CONFIG = app_config()
HARD = (
    "Prove that every bounded sequence of real numbers has a convergent subsequence, then derive the convergence rate "
    "of gradient descent on a strongly convex function and compare both arguments step by step."
)


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
        "logit_bias: not allowed with speculative decoding, which tier eco uses; allowed models are ultra and auto"
    )
    assert pick({**BIASED, "model": "ultra"}) == "ultra"


def test_where_every_tier_drafts_it_is_refused_with_that_reason() -> None:
    nothing = Observation({"ultra": TierState(failed=True)})
    for model in ("auto", "eco"):
        with pytest.raises(ApiError, match=r"logit_bias: not allowed with .* which every tier uses now"):
            choose({**BIASED, "model": model}, CONFIG, nothing)
