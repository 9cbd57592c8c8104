"""The tools, each defined once: what they answer, and that all that is made of them is made of the definitions."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.agent.tools import TOOLS, ToolContext, ToolError, json_schema, messages_api_tool
from router.observation import Observation, TierState
from router.plan import plan
from router.registry import TIER_NAMES
from router.request import InferenceRequest
from router.runs.summary import Recent, RunSummary
from tests.unit.router.profiles import NGRAM_K_MAX, small_profile

PROFILE = small_profile()
RUNS = RunSummary(
    runs=12.5,
    ttft_ms=Recent(100, 20, 12.5),
    tokens_per_s=Recent(40, 5, 12.5),
    energy_wh=Recent(0.01, 0.001, 12.5),
    draft_tokens=10,
    accepted_tokens=4,
)
OBSERVATION = Observation(
    {
        "eco": TierState(running=2, queue_wait_ms=7, active_entry="small-alone", recent=RUNS),
        "ultra": TierState(pending=1, cold_start_s=40, reason="waits for a GPU", recent_by_category={"code": RUNS}),
    }
)
OUTSIDE = ToolContext(PROFILE, OBSERVATION)


def inside(**body: Any) -> ToolContext:
    request = InferenceRequest.model_validate({"prompt": "What is the capital of France?"} | body)
    return ToolContext(PROFILE, OBSERVATION, request)


def call(name: str, context: ToolContext = OUTSIDE, **arguments: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(TOOLS[name].call(arguments, context).model_dump_json())
    return answer


def test_there_are_five_tools() -> None:
    assert list(TOOLS) == ["classify_prompt", "check_gpu_pool", "build_config", "recent_runs", "decision"]


def test_a_prompt_is_classified() -> None:
    answer = call("classify_prompt", prompt="Prove that the square root of 2 is irrational.")
    assert answer["category"] == "math"
    assert answer["difficulty"] <= 5


def test_without_a_text_the_current_prompt_is_classified_in_its_conversation() -> None:
    grave = {"role": "user", "content": "How much ibuprofen can I give my baby?"}
    chat = [grave, {"role": "assistant", "content": "It depends."}, {"role": "user", "content": "And twice a day?"}]
    answer = call("classify_prompt", inside(prompt=None, messages=chat))
    assert answer["category"] == "safety_critical"


def test_outside_of_a_request_the_text_must_be_given() -> None:
    with pytest.raises(ToolError, match="prompt"):
        call("classify_prompt")


def test_check_gpu_pool_returns_the_live_state() -> None:
    assert call("check_gpu_pool", tier="eco") == {
        "tier": "eco",
        "gpu": "L4",
        "running": 2,
        "starting": 0,
        "pending": 0,
        "warm": True,
        "cold_start_s": 0.0,
        "queue_wait_ms": 7.0,
        "reason": None,
    }
    assert call("check_gpu_pool", tier="ultra")["reason"] == "waits for a GPU"
    assert call("check_gpu_pool", tier="balanced")["cold_start_s"] == 90  # the registry's, as nobody has looked


def test_a_config_follows_the_entry_that_serves() -> None:
    answer = call("build_config", tier="eco")
    assert (answer["entry"], answer["spec_method"], answer["speed"]) == ("small-alone", None, 50)


def test_a_config_follows_the_request_and_the_arguments_over_it() -> None:
    context = ToolContext(PROFILE, Observation(), inside(speed=80, spec={"k": 3}, max_tokens=9).request)
    asked = call("build_config", context, tier="eco")
    assert (asked["speed"], asked["spec_k"], asked["spec_k_mode"], asked["max_tokens"]) == (80, 3, "fixed", 9)
    other = call("build_config", context, tier="eco", speed=0, k="auto", tau=0.5)
    assert (other["speed"], other["spec_k"], other["spec_k_mode"], other["spec_tau"]) == (0, NGRAM_K_MAX, "auto", 0.5)


def test_recent_runs_of_all_categories_or_of_one() -> None:
    every = call("recent_runs", tier="eco")
    assert (every["runs"], every["ttft_ms"], every["ttft_deviation_ms"], every["acceptance_rate"]) == (
        12.5,
        100,
        20,
        0.4,
    )
    assert every["total_ms"] is None
    assert call("recent_runs", tier="ultra", category="code")["tokens_per_s"] == 40
    assert call("recent_runs", tier="ultra", category="math")["runs"] == 0


@pytest.mark.parametrize(
    ("name", "arguments", "key"),
    [
        ("check_gpu_pool", {"tier": "huge"}, "tier"),
        ("check_gpu_pool", {}, "tier"),
        ("check_gpu_pool", {"tier": "eco", "more": 1}, "more"),
        ("build_config", {"tier": "eco", "speed": 101}, "speed"),
        ("build_config", {"tier": "eco", "k": 33}, "k"),
        ("recent_runs", {"tier": "eco", "category": "poetry"}, "category"),
        ("classify_prompt", {"prompt": 7}, "prompt"),
    ],
)
def test_wrong_arguments_are_named(name: str, arguments: dict[str, Any], key: str) -> None:
    with pytest.raises(ToolError, match=key):
        TOOLS[name].call(arguments, OUTSIDE)


# --- what is made of the definitions ---


@pytest.mark.parametrize("name", TOOLS)
def test_the_messages_api_gets_name_description_and_schema(name: str) -> None:
    tool = messages_api_tool(TOOLS[name])
    assert tool["name"] == name
    assert tool["description"] == TOOLS[name].description
    schema: Any = tool["input_schema"]
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(TOOLS[name].input_type.model_fields)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert "title" not in json.dumps(schema)


@pytest.mark.parametrize("name", TOOLS)
def test_every_argument_and_every_answer_is_described(name: str) -> None:
    for model in (TOOLS[name].input_type, TOOLS[name].output_type):
        assert [field for field, info in model.model_fields.items() if not info.description] == []


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("classify_prompt", {"prompt": "Hi"}),
        ("check_gpu_pool", {"tier": "ultra"}),
        ("build_config", {"tier": "performance", "k": 2}),
        ("recent_runs", {"tier": "eco"}),
    ],
)
def test_answers_keep_their_schema_and_arguments_pass_theirs(name: str, arguments: dict[str, Any]) -> None:
    jsonschema.validate(arguments, json_schema(TOOLS[name].input_type))
    jsonschema.validate(call(name, **arguments), json_schema(TOOLS[name].output_type, "serialization"))


def test_the_steps_of_the_deterministic_plan_are_answers_of_the_tools_of_the_same_names() -> None:
    made = plan(InferenceRequest(prompt="What is the capital of France?"), OBSERVATION, PROFILE)
    by_name = {step.step: step.result for step in made.trace}
    assert set(by_name) <= set(TOOLS)
    for name, result in by_name.items():
        assert TOOLS[name].output_type.model_validate(result).model_dump() == result


@given(
    st.sampled_from(sorted(TOOLS)),
    st.dictionaries(st.text(max_size=8), st.none() | st.integers() | st.text(max_size=8)),
)
def test_for_any_arguments_a_tool_answers_or_raises_tool_error(name: str, arguments: dict[str, Any]) -> None:
    with contextlib.suppress(ToolError):
        assert isinstance(TOOLS[name].call(arguments, OUTSIDE), TOOLS[name].output_type)


@given(st.sampled_from(TIER_NAMES), st.none() | st.integers(0, 100), st.none() | st.integers(0, 32) | st.just("auto"))
def test_a_config_is_one_that_the_tier_can_run(tier: str, speed: int | None, k: int | str | None) -> None:
    answer = call("build_config", tier=tier, speed=speed, k=k)
    assert answer["entry"] in [step.name for step in PROFILE.tiers[answer["tier"]].chain]
    assert answer["max_tokens"] >= 1
