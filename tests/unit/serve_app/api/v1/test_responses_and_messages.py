"""Bodies of the responses and messages routes: what SDKs and agents send passes, what nobody has is refused."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types import beta, message_count_tokens_params, message_create_params
from anthropic.types.beta import message_create_params as beta_create_params
from openai.types.responses import response_create_params

from serve_app.api.errors import ApiError
from serve_app.api.v1.anthropic import COUNT_TOKENS, MESSAGES
from serve_app.api.v1.body import V1Api, V1Body, parse_v1
from serve_app.api.v1.openai import RESPONSES
from serve_app.config import Limits
from tests.support.agent_requests import CLAUDE_CODE, CODEX

LIMITS = Limits()
HI = [{"role": "user", "content": "Hi"}]


def responses(**fields: Any) -> V1Body:
    return parse_v1({"model": "auto", "input": "Hi", **fields}, RESPONSES, LIMITS)


def messages(**fields: Any) -> V1Body:
    return parse_v1({"model": "auto", "max_tokens": 9, "messages": HI, **fields}, MESSAGES, LIMITS)


def refusal(parse: Any, **fields: Any) -> str:
    with pytest.raises(ApiError) as error:
        parse(**fields)
    assert (error.value.status, error.value.code) == (400, "invalid_request")
    return error.value.message


@pytest.mark.parametrize(
    "params",
    [
        response_create_params.ResponseCreateParamsNonStreaming,
        response_create_params.ResponseCreateParamsStreaming,
    ],
)
def test_every_field_of_openais_sdk_is_known(params: type) -> None:
    known(params, RESPONSES)


@pytest.mark.parametrize(
    ("params", "api"),
    [
        (message_create_params.MessageCreateParamsNonStreaming, MESSAGES),
        (message_create_params.MessageCreateParamsStreaming, MESSAGES),
        (beta_create_params.MessageCreateParamsNonStreaming, MESSAGES),
        (message_count_tokens_params.MessageCountTokensParams, COUNT_TOKENS),
        (beta.message_count_tokens_params.MessageCountTokensParams, COUNT_TOKENS),
    ],
)
def test_every_field_of_anthropics_sdk_is_known(params: type, api: V1Api) -> None:
    known(params, api)


def known(params: type, api: V1Api) -> None:
    body = {"model": 3} | {name: {"x": 1} for name in params.__annotations__}
    with pytest.raises(ApiError) as error:
        parse_v1(body, api, LIMITS)
    assert "unknown key" not in error.value.message
    assert api.known >= params.__annotations__.keys()


def test_what_claude_code_sends_is_passed_on_without_what_only_anthropics_servers_know() -> None:
    body = parse_v1(CLAUDE_CODE, MESSAGES, LIMITS, betas=True)
    without = {"metadata", "context_management"}
    assert without < CLAUDE_CODE.keys()
    assert body.fields == {key: value for key, value in CLAUDE_CODE.items() if key not in without}
    assert (body.streaming, body.own, body.max_tokens) == (True, {}, CLAUDE_CODE["max_tokens"])


def test_what_codex_sends_is_passed_on_without_what_only_openais_servers_know() -> None:
    body = parse_v1(CODEX, RESPONSES, LIMITS)
    without = {"store", "prompt_cache_key", "include"}
    assert without < CODEX.keys()
    assert body.fields == {key: value for key, value in CODEX.items() if key not in without} | {"include": []}


def test_an_unknown_field_is_refused_unless_the_client_has_beta_features() -> None:
    assert refusal(messages, request_id=1).startswith("request_id: unknown key, allowed are ")
    body = parse_v1({"model": "auto", "messages": HI, "new_beta": 1, "vllm_xargs": {}}, MESSAGES, LIMITS, betas=True)
    assert body.fields == {"model": "auto", "messages": HI}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id: responses are not stored here: send the whole"),
        ({"conversation": "c"}, "conversation: responses are not stored here"),
        ({"background": True}, "background: responses are not stored here"),
        ({"prompt": {"id": "p"}}, "prompt: prompt templates are kept on OpenAI's servers"),
        ({"kv_transfer_params": {}}, "kv_transfer_params: unknown key"),
        ({"request_id": "x"}, "request_id: unknown key"),
        ({"priority": 1}, "priority: Input should be 'normal' or 'batch', got 1"),
        ({"input": 3}, "input: must be a string or a list, got 3"),
        ({"max_output_tokens": 0}, "max_output_tokens: Input should be greater than or equal to 1, got 0"),
    ],
)
def test_what_a_response_cannot_have_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    assert refusal(responses, **fields).startswith(message)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mcp_servers": [{"url": "https://x"}]}, "mcp_servers: they are called by Anthropic's servers"),
        ({"container": "c"}, "container: containers are run by"),
        ({"output_format": {"type": "json_schema"}}, "output_format: send it as `output_config.format`"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "tools.0: web_search_20250305 is a tool that Anthropic defines or runs; define it with `input_schema`",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "ls", "input": "-l"}]}]},
            "messages.0.content.0.input: must be an object, got str",
        ),
        (
            {"messages": [*HI, {"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}]},
            "messages.1.content.1: must be an object, got str",
        ),
        ({"max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1, got 0"),
        ({"max_tokens": "9"}, "max_tokens: Input should be a valid integer, got '9'"),
        ({"system": 3}, "system: must be a string or a list, got 3"),
        ({"messages": "Hi"}, "messages: Input should be a valid list, got 'Hi'"),
        ({"stop_sequences": list("abcde")}, "stop_sequences: "),
        ({"speed": "warp"}, "speed: Input should be a valid integer"),
        ({"power": 5}, "(top level): "),
    ],
)
def test_what_a_message_cannot_have_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    assert refusal(messages, **fields).startswith(message)


def test_fields_that_ask_for_nothing_are_accepted() -> None:
    assert messages(mcp_servers=[], container=None, speed="standard").fields.keys() == {
        "model",
        "max_tokens",
        "messages",
    }
    assert responses(background=False, previous_response_id=None, store=True).fields == {"model": "auto", "input": "Hi"}
    assert messages(speed=30).own == {"speed": 30}


def test_an_image_counts_by_the_size_of_the_body_and_not_as_text() -> None:
    data = {"type": "base64", "media_type": "image/png", "data": "A" * 1_000_000}
    content = [{"type": "image", "source": data}, {"type": "text", "text": "What is this?"}]
    assert messages(messages=[{"role": "user", "content": content}]).fields["messages"][0]["content"] == content
    with pytest.raises(ApiError, match="max_prompt_chars"):
        messages(system=[{"type": "text", "text": "x" * 200_001}])
