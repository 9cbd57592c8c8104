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
def test_a_body_without_text_is_planned_as_an_empty_prompt(body: dict[str, Any]) -> None:
    assert pick({"model": "auto"} | body) == tier_of(" ")


@pytest.mark.parametrize("model", ["gpt-4o", "", "Eco"])
def test_an_unknown_model_is_a_404_that_names_the_allowed_ones(model: object) -> None:
    with pytest.raises(ApiError) as error:
        pick({"model": model, "prompt": "Hi"})
    assert (error.value.status, error.value.code) == (404, "model_not_found")
    assert error.value.message == f"model: got {model!r}, allowed are auto, eco, balanced, performance, ultra"


SCOPE = {"type": "http", "method": "POST", "path": "/v1/completions", "root_path": "", "headers": []}


def test_only_model_and_spec_are_rewritten_for_the_engine() -> None:
    body = {"model": "auto", "prompt": "Hi", "tools": [{"x": 1}], "stream": True}
    choice = Choice("ultra", SpecParams(k=3, tau=0.5, drafts="own"), "code", {})
    call = engine_call(Request(SCOPE), body | {"spec": {"k": 3}}, choice, "r1")
    assert (call.method, call.path) == ("POST", "/v1/completions")
    arguments = {
        "speculation_k": 3,
        "speculation_tau": 0.5,
        "speculation_drafts": "own",
        "speculation_category": "code",
    }
    assert orjson.loads(call.body) == body | {"model": "ultra", "vllm_xargs": arguments}
    assert (b"x-request-id", b"r1") in call.headers
    assert (b"content-length", str(len(call.body)).encode()) in call.headers


def test_the_engine_gets_the_path_without_the_route_prefix() -> None:
    scope = SCOPE | {"path": "/b/v1/completions", "root_path": "/b"}
    assert engine_call(Request(scope), {}, Choice("eco", NO_DRAFTS, "code", {}), "r1").path == "/v1/completions"


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
    choice = choose(
        {"model": "eco", "prompt": "def f(x):\n    return x  # fix this code", "spec": spec}, CONFIG, Observation()
    )
    assert (choice.spec.k, choice.spec.tau, choice.category) == (k, tau, "code")


def test_past_runs_with_hardly_any_accepted_draft_switch_drafts_off() -> None:
    waste = RunSummary(runs=50, draft_tokens=4000, accepted_tokens=20)
    seen = Observation({"eco": TierState(running=1, recent_by_category={"simple_question": waste})})
    body = {"model": "eco", "prompt": "Hi"}
    assert choose(body, CONFIG, seen).spec.k == 0
    assert choose(body | {"spec": {"k": "auto"}}, CONFIG, seen).spec.k == "auto"
    assert choose(body | {"model": "balanced"}, CONFIG, seen).spec.k == "auto"


def test_what_is_planned_is_shown_as_in_the_config_event() -> None:
    spec = {"k": 3, "tau": "auto", "drafts": "own"}
    choice = choose({"model": "eco", "prompt": "Hi", "spec": spec}, CONFIG, Observation())
    assert choice.planned == {
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
    assert choose(BIASED, CONFIG, fallen).tier == "eco"


def test_a_named_tier_with_drafts_refuses_them_and_names_the_tiers_without() -> None:
    with pytest.raises(ApiError) as error:
        pick({**BIASED, "model": "eco", "spec": {"enabled": False}})
    assert error.value.status == 400
    assert error.value.message == (
        "logit_bias: not allowed with speculative decoding, which tier eco uses; allowed models are ultra and auto"
    )
    assert pick({**BIASED, "model": "ultra"}) == "ultra"


def test_they_are_refused_if_every_tier_drafts() -> None:
    nothing = Observation({"ultra": TierState(failed=True)})
    for model in ("auto", "eco"):
        with pytest.raises(ApiError, match=r"logit_bias: not allowed with .* which every tier uses now"):
            choose({**BIASED, "model": model}, CONFIG, nothing)
