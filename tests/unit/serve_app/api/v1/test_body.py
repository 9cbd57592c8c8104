"""Bodies of chat and completions: allowed fields pass, others are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from serve_app.api.errors import ApiError
from serve_app.api.v1.body import V1Api, V1Body, parse_v1
from serve_app.api.v1.openai import CHAT, COMPLETIONS
from serve_app.config import Limits

LIMITS = Limits(max_prompt_chars=100, max_sequences=8)
MESSAGES = [{"role": "user", "content": "Hi"}]


def chat(**fields: Any) -> V1Body:
    return parse_v1({"model": "eco", "messages": MESSAGES, **fields}, CHAT, LIMITS)


def completion(**fields: Any) -> V1Body:
    return parse_v1({"model": "eco", "prompt": "Hi", **fields}, COMPLETIONS, LIMITS)


def refusal(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as error:
        chat(**fields)
    assert (error.value.status, error.value.retryable) == (400, False)
    return error.value


# What clients send: the SDK's examples, `vllm bench serve`, GuideLLM, AIPerf and LangChain.
@pytest.mark.parametrize(
    "fields",
    [
        {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {"max_completion_tokens": 8, "ignore_eos": True, "min_tokens": 8, "stop": None, "n": None, "logit_bias": None},
        {"temperature": 1, "top_p": 0.9, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "seed": 7},
        {"presence_penalty": 0.5, "frequency_penalty": -0.5, "logit_bias": {"50256": -100}, "user": "me"},
        {
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
        },
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"response_format": {"type": "json_object"}, "logprobs": True, "top_logprobs": 5},
        {"structured_outputs": {"regex": "[a-z]+"}, "stop": ["a", "b"], "reasoning_effort": "low"},
        {"chat_template_kwargs": {"enable_thinking": False}, "stop": "\n"},
    ],
)
def test_bodies_of_real_clients_pass_unchanged(fields: dict[str, Any]) -> None:
    given = {key: value for key, value in fields.items() if value is not None}
    assert chat(**fields).fields == {"model": "eco", "messages": MESSAGES, **given}


def test_fields_without_a_meaning_are_accepted_and_not_passed_on() -> None:
    body = chat(metadata={"a": "b"}, store=True, service_tier="auto", prompt_cache_key="k", vllm_xargs={})
    assert body.fields == {"model": "eco", "messages": MESSAGES}


@pytest.mark.parametrize(
    "name",
    [
        "kv_transfer_params",
        "ec_transfer_params",
        "repetition_detection",
        "chat_template",
        "use_beam_search",
        "request_id",
        "prompt_embeds",
        "best_of",
        "max_token",
    ],
)
def test_a_field_that_is_not_allowed_is_refused_by_its_name(name: str) -> None:
    values: list[object] = [1, 0, {}, "x", False]
    for value in values:
        assert refusal(**{name: value}).message.startswith(f"{name}: unknown key")


def test_our_own_fields_are_taken_out_and_kept_apart() -> None:
    own = {"mode": "manual", "power": 95, "speed": 20, "spec": {"k": 3}, "constraints": {"max_ttft_ms": 2000}}
    body = parse_v1({"model": "auto", "messages": MESSAGES, **own}, CHAT, LIMITS)
    assert (body.fields, body.own) == ({"model": "auto", "messages": MESSAGES}, own)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"power": 95}, "`power` is set by the prompt in auto mode; send mode `manual` to set it yourself"),
        ({"mode": "manual", "goal": "faster"}, "`goal` shifts the tier in auto mode"),
        ({"mode": "fast"}, "mode: Input should be 'auto' or 'manual', got 'fast'"),
        ({"mode": "manual", "power": 101}, "power: Input should be less than or equal to 100, got 101"),
        ({"speed": "fast"}, "speed: Input should be a valid integer"),
        ({"goal": "cheapest"}, "goal: Input should be 'faster', 'cheaper', 'greener' or 'better', got 'cheapest'"),
        ({"constraints": {"max_ttft": 1}}, "constraints.max_ttft: unknown key, allowed are max_ttft_ms, "),
        ({"constraints": {"max_ttft_ms": 0}}, "constraints.max_ttft_ms: Input should be greater than 0, got 0"),
    ],
)
def test_our_own_fields_are_checked_as_on_api_inference(own: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError) as error:
        parse_v1({"model": "auto", "messages": MESSAGES, **own}, CHAT, LIMITS)
    assert (error.value.status, error.value.code) == (400, "invalid_request")
    assert message in error.value.message


@pytest.mark.parametrize("own", [{"mode": "manual"}, {"mode": "auto"}, {"power": 10}, {"goal": "better"}])
def test_a_tiers_name_leaves_no_choice_to_our_fields(own: dict[str, Any]) -> None:
    [name] = own
    assert refusal(**own).message == f"{name}: goes with model auto; model eco is a tier's name"


def test_extra_arguments_for_the_scheduler_are_refused() -> None:
    error = refusal(vllm_xargs={"speculation_other": 1})
    assert error.message.startswith("vllm_xargs: ")
    assert "`spec`" in error.message


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stream": "false"}, "stream: Input should be a valid boolean, got 'false'"),
        ({"stream": 1}, "stream: Input should be a valid boolean, got 1"),
        (
            {"stream_options": {"include_usage": "yes"}},
            "stream_options.include_usage: Input should be a valid boolean, got 'yes'",
        ),
        (
            {"stream_options": {"usage": True}},
            "stream_options.usage: unknown key, allowed are include_usage, continuous_usage_stats, include_obfuscation",
        ),
        ({"n": 0}, "n: Input should be greater than or equal to 1, got 0"),
        ({"n": 2**31}, "n: Input should be less than or equal to 2147483647, got 2147483648"),
        ({"n": True}, "n: Input should be a valid integer, got true"),
        ({"max_tokens": 1.5}, "max_tokens: Input should be a valid integer, got 1.5"),
        ({"temperature": "hot"}, "temperature: Input should be a valid number, got 'hot'"),
        ({"temperature": True}, "temperature: Input should be a valid number, got true"),
        ({"model": 3}, "model: Input should be a valid string, got 3"),
        ({"messages": "Hi"}, "messages: Input should be a valid list, got 'Hi'"),
        ({"messages": ["Hi"]}, "messages.0: Input should be an object, got 'Hi'"),
        ({"stop": [""]}, "stop.0: String should have at least 1 character, got ''"),
        ({"stop": ["a", 3]}, "stop.1: Input should be a valid string, got 3"),
        ({"stop": 3}, "stop: must be a string or a list of at most 4, got 3"),
        ({"stop": list("abcde")}, 'stop: must be a string or a list of at most 4, got ["a", "b", "c", "d", "e"]'),
        ({"spec": 3}, "spec: Input should be an object, got 3"),
        ({"spec": {"k": 33}}, "spec.k: must be an integer 0-32 or 'auto', got 33"),
        ({"spec": {"tau": "half"}}, "spec.tau: must be a number 0-1 or 'auto', got 'half'"),
        ({"spec": {"drafts": "eagle"}}, "spec.drafts: Input should be 'own', 'ngram' or 'auto', got 'eagle'"),
        ({"spec": {"tow": 1}}, "spec.tow: unknown key, allowed are enabled, k, tau, drafts"),
        ({"logit_bias": {"7": None}}, "logit_bias.7: Input should be a valid number, got null"),
        (
            {"tool_choice": "any"},
            "tool_choice: must be 'none', 'auto', 'required' or an object, got 'any'",
        ),
    ],
)
def test_a_wrong_type_is_an_error_that_names_the_field(fields: dict[str, Any], message: str) -> None:
    assert refusal(**fields).message == message


def test_a_refused_field_is_told_which_ones_are_allowed_once() -> None:
    first, second = refusal(prompt="Hi", request_id=1).message.split("; ")
    assert first.startswith("prompt: unknown key, allowed are mode, power, speed, goal, constraints, spec, priority, ")
    assert "messages" in first
    assert second == "request_id: unknown key"


def test_a_priority_is_ours_and_not_vllms_which_would_overtake_others() -> None:
    assert refusal(priority=-5).message == "priority: Input should be 'normal' or 'batch', got -5"
    body = parse_v1({"model": "auto", "messages": [], "priority": "batch"}, CHAT, LIMITS)
    assert (body.own, "priority" in body.fields) == ({"priority": "batch"}, False)


def test_lists_have_limits() -> None:
    assert refusal(tools=[{}] * 129).message.startswith("tools: Should have at most 128 entries")
    assert refusal(allowed_token_ids=[5] * 1025).message.startswith("allowed_token_ids: Should have at most 1024")


def test_one_error_names_up_to_ten_problems() -> None:
    message = refusal(stream=1, **{f"field_{number}": 1 for number in range(20)}).message
    assert message.startswith("stream: Input should be a valid boolean, got 1; field_0: unknown key")
    assert message.endswith("; and 11 more")


@pytest.mark.parametrize("body", [[], "text", None, 3])
def test_a_body_that_is_not_an_object_is_refused(body: object) -> None:
    with pytest.raises(ApiError, match="must be a JSON object, got") as error:
        parse_v1(body, CHAT, LIMITS)
    assert error.value.status == 400


def test_null_means_that_a_field_is_not_given() -> None:
    assert chat(model=None, temperature=None).fields == {"messages": MESSAGES}


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("Hi", 1), (["Hi"], 1), (["a", "b", "c"], 3), ([5, 6, 7], 1), ([[5], [6, 7]], 2), ([], 0), ("", 1)],
)
def test_sequences_are_prompts_times_n(prompt: object, prompts: int) -> None:
    assert completion(prompt=prompt).sequences == prompts
    assert completion(prompt=prompt, n=2).sequences == 2 * prompts


@pytest.mark.parametrize("prompt", [5, {"a": 1}, [5, "a"], [[5], "a"], [-1], [[True]], [[]], [None], [[[5]]]])
def test_a_value_that_is_not_a_prompt_is_refused(prompt: object) -> None:
    with pytest.raises(ApiError) as error:
        completion(prompt=prompt)
    assert error.value.message.startswith("prompt: must be a string, a list of strings, a list of token ids, or a list")


def test_more_sequences_than_the_limit_are_refused() -> None:
    assert chat(n=8).sequences == 8
    assert refusal(n=9).message.endswith("are 9 sequences, allowed are limits.max_sequences = 8")
    assert completion(prompt=["a"] * 4, n=2).sequences == 8
    with pytest.raises(ApiError, match="2 answers to each of 5 prompts are 10 sequences"):
        completion(prompt=["a"] * 5, n=2)


def test_the_tokens_of_all_sequences_together_are_limited() -> None:
    chat(n=4, max_tokens=250_000).check_length(2048)
    with pytest.raises(ApiError, match=r"4 sequences .* of 250001 tokens are 1000004 tokens, allowed are 1000000"):
        chat(n=4, max_tokens=250_001).check_length(2048)
    # An answer whose length is not given may fill the context; vLLM takes `max_completion_tokens` first.
    with pytest.raises(ApiError, match=r"2 sequences .* of 500001 tokens"):
        chat(n=2).check_length(500_001)
    chat(n=2, max_completion_tokens=10, max_tokens=500_001).check_length(2048)
    # One sequence is limited by the context.
    chat().check_length(2_000_000)


LONG = "x" * 51


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "system", "content": LONG}, {"role": "user", "content": LONG}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}, {"type": "text", "text": LONG}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": 2 * LONG}}]}]},
        {"tools": [{"type": "function", "function": {"name": "f", "description": 2 * LONG}}]},
        {"tools": [{"function": {"parameters": {"properties": {LONG: {}, "y" + LONG: {}}}}}]},
        {"chat_template_kwargs": {"text": 2 * LONG}},
        {"structured_outputs": {"regex": 2 * LONG}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": [LONG, LONG]}}}},
    ],
)
def test_the_limit_holds_for_the_whole_conversation(fields: dict[str, Any]) -> None:
    error = refusal(**fields)
    assert error.code == "prompt_too_long"
    assert "max_prompt_chars = 100" in error.message


@pytest.mark.parametrize("prompt", ["x" * 101, ["x" * 50, "x" * 51], [5] * 101, [[5] * 50, [5] * 51]])
def test_the_limit_holds_for_every_form_of_a_prompt(prompt: object) -> None:
    with pytest.raises(ApiError, match=r"has 101 characters, allowed are limits\.max_prompt_chars = 100") as error:
        parse_v1({"prompt": prompt}, COMPLETIONS, LIMITS)
    assert (error.value.status, error.value.code) == (400, "prompt_too_long")


def test_a_prompt_of_exactly_the_limit_is_accepted() -> None:
    assert completion(prompt="x" * 100).sequences == 1


NOT_TAKEN = {
    "audio",
    "function_call",
    "functions",
    "moderation",
    "prediction",
    "verbosity",
    "web_search_options",
    "best_of",
    "suffix",
}
"""Fields of OpenAI's SDK that vLLM does not serve."""


@pytest.mark.parametrize(
    ("params", "api"),
    [
        (chat_create_params.CompletionCreateParamsNonStreaming, CHAT),
        (chat_create_params.CompletionCreateParamsStreaming, CHAT),
        (completion_create_params.CompletionCreateParamsNonStreaming, COMPLETIONS),
        (completion_create_params.CompletionCreateParamsStreaming, COMPLETIONS),
    ],
)
def test_every_field_of_openais_sdk_is_either_accepted_or_known_to_be_refused(params: type, api: V1Api) -> None:
    of_no_fields_type = [[[[None]]]]
    for name in params.__annotations__:
        with pytest.raises(ApiError) as error:
            parse_v1({name: of_no_fields_type}, api, LIMITS)
        assert ("unknown key" in error.value.message) == (name in NOT_TAKEN), name


VLLM_BENCH = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
GUIDELLM = {
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "ignore_eos": True,
}
PARTS = [{"role": "user", "content": [{"type": "text", "text": "Yes way plan prepare dinner"}]}]


# Bodies recorded from the clients (2026-11-29), with shorter prompts.
@pytest.mark.parametrize(
    ("body", "api"),
    [
        pytest.param({"model": "eco", "messages": PARTS, "max_completion_tokens": 8, **VLLM_BENCH}, CHAT, id="vllm"),
        pytest.param(
            {
                "model": "eco",
                "prompt": " Infrared Treating cartsLeans",
                "repetition_penalty": 1.0,
                "max_tokens": 8,
                "logprobs": None,
                **VLLM_BENCH,
            },
            COMPLETIONS,
            id="vllm-completions",
        ),
        pytest.param({"model": "eco", "messages": PARTS, "max_completion_tokens": 8, **GUIDELLM}, CHAT, id="guidellm"),
        pytest.param(
            {"model": "eco", "prompt": "Yes way plan", "max_tokens": 8, **GUIDELLM},
            COMPLETIONS,
            id="guidellm-completions",
        ),
        pytest.param(
            {
                "model": "eco",
                "messages": [{"role": "user", "content": " sister I may go look"}],
                "stream": True,
                "max_completion_tokens": 8,
                "stream_options": {"include_usage": True},
            },
            CHAT,
            id="aiperf",
        ),
    ],
)
def test_bodies_of_benchmark_clients_pass_unchanged(body: dict[str, Any], api: V1Api) -> None:
    given = {key: value for key, value in body.items() if value is not None}
    assert parse_v1(body, api, LIMITS).fields == given
