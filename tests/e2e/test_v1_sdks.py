"""Responses and messages through the official SDKs against real engines, by vLLM's own layers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

import anthropic
import openai
import pytest
from anthropic.types import MessageParam, ToolParam
from openai.types.responses import FunctionToolParam

from tests.support.agent_requests import CLAUDE_CODE, CLAUDE_CODE_HEADERS, CODEX
from tests.support.api import Api, Json

QUESTION = "What is the capital of France?"
TURNS: list[MessageParam] = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
CITY: Json = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
GREEDY: Json = {"temperature": 0}
"""A field that this SDK left out and the API has."""
OSLO = "How is the weather in Oslo?"


@pytest.fixture
def claude(api: Api) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=api.base_url, api_key="none", max_retries=0, timeout=300) as client:
        yield client


def test_a_message_is_the_same_whole_and_streamed(claude: anthropic.Anthropic) -> None:
    whole = claude.messages.create(model="eco", max_tokens=24, messages=TURNS, extra_body=GREEDY)
    with claude.messages.stream(model="eco", max_tokens=24, messages=TURNS, extra_body=GREEDY) as stream:
        deltas = [event.usage for event in stream if event.type == "message_delta"]
        streamed = stream.get_final_message()

    [text] = whole.content
    assert text.type == "text"
    assert "Paris" in text.text
    assert [block.model_dump() for block in streamed.content] == [text.model_dump()]
    assert (streamed.model, streamed.stop_reason) == (whole.model, whole.stop_reason) == ("eco", whole.stop_reason)
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    # The SDK's final message keeps only the fields of `usage` that it knows.
    for usage in (whole.usage, deltas[-1]):
        assert (usage.model_extra or {})["power_lever"]["busy_s"] > 0
    counted = claude.messages.count_tokens(model="eco", messages=TURNS)
    assert counted.input_tokens == whole.usage.input_tokens


def test_a_response_is_the_same_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="eco", input=QUESTION, temperature=0, max_output_tokens=24)
    with client.responses.stream(model="eco", input=QUESTION, temperature=0, max_output_tokens=24) as stream:
        streamed = stream.get_final_response()

    assert "Paris" in whole.output_text
    assert (streamed.output_text, whole.model) == (whole.output_text, "eco")
    assert streamed.usage is not None
    assert whole.usage is not None
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert all((usage.model_extra or {})["power_lever"]["busy_s"] > 0 for usage in (whole.usage, streamed.usage))


def test_a_named_tool_is_called_by_a_message(claude: anthropic.Anthropic) -> None:
    tool: ToolParam = {
        "name": "get_weather",
        "description": "The weather in a city.",
        "input_schema": CITY,
        # Without it vLLM only asks for JSON, and a small model may give a string.
        "strict": True,
    }
    answer = claude.messages.create(
        model="performance",
        max_tokens=48,
        messages=[{"role": "user", "content": OSLO}],
        tools=[tool],
        tool_choice={"type": "tool", "name": "get_weather"},
        extra_body=GREEDY,
    )

    # The grammar allows white space after the call, and a small model may write it until `max_tokens`.
    assert answer.stop_reason in ("tool_use", "max_tokens")
    [call] = [block for block in answer.content if block.type == "tool_use"]
    assert call.name == "get_weather"
    assert call.input in ({"city": "Paris"}, {"city": "Oslo"})


def test_a_named_tool_is_called_by_a_response(client: openai.OpenAI) -> None:
    tool: FunctionToolParam = {"type": "function", "name": "get_weather", "parameters": CITY, "strict": True}
    answer = client.responses.create(
        model="performance",
        input=OSLO,
        tools=[tool],
        tool_choice={"type": "function", "name": "get_weather"},
        temperature=0,
        max_output_tokens=48,
    )

    [call] = [item for item in answer.output if item.type == "function_call"]
    assert json.loads(call.arguments)["city"] in ("Paris", "Oslo")


def test_what_coding_agents_send_is_served_unmodified(api: Api) -> None:
    """Shortened: what they really send does not fit these models' context, and their answers may take minutes."""
    claude = api.post_as("/v1/messages?beta=true", CLAUDE_CODE | {"max_tokens": 40}, CLAUDE_CODE_HEADERS)
    codex = api.post("/v1/responses", CODEX | {"max_output_tokens": 40})

    for answer, last in ((claude, "message_stop"), (codex, "response.")):
        assert answer.status_code == 200, answer.text
        kinds = [line.removeprefix("event: ") for line in answer.text.splitlines() if line.startswith("event: ")]
        assert kinds[-1].startswith(last)
        assert "error" not in kinds


def test_refusals_of_the_engine_have_the_apis_form(claude: anthropic.Anthropic, client: openai.OpenAI) -> None:
    words = "word " * 3000
    with pytest.raises(anthropic.BadRequestError) as error:
        claude.messages.create(model="eco", max_tokens=4, messages=[{"role": "user", "content": words}])
    assert cast(Json, error.value.body)["error"]["type"] == "invalid_request_error"
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model="eco", input=words)
    unknown: Any = [{"role": "user", "content": [{"type": "x"}]}]
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.create(model="eco", max_tokens=4, messages=unknown)


def test_their_runs_are_counted_with_the_engines_own_figures(
    api: Api, claude: anthropic.Anthropic, client: openai.OpenAI
) -> None:
    letter = "Write a poem about a fog horn."  # creative writing, which no other test asks of this tier
    turns: list[MessageParam] = [{"role": "user", "content": letter}]
    # A stop string ends one of them, which vLLM's engine does not know.
    claude.messages.create(model="eco", max_tokens=12, messages=turns)
    with claude.messages.stream(model="eco", max_tokens=12, messages=turns) as stream:
        stream.get_final_message()
    client.responses.create(model="eco", input=letter, max_output_tokens=12)
    stopped = client.chat.completions.create(
        model="eco", messages=[{"role": "user", "content": letter}], max_tokens=12, stop=["e"], temperature=0
    )
    client.completions.create(model="eco", prompt=letter, max_tokens=12, n=2)

    def creative(api: Api) -> Json:
        found: Json = api.tier("eco")["recent"]["categories"].get("creative", {"runs": 0.0})
        return found

    api.wait_for(lambda api: creative(api)["runs"] > 4.5)
    runs = creative(api)
    assert stopped.usage is not None
    assert 0 < stopped.usage.completion_tokens <= 12
    assert 8 <= runs["completion_tokens"]["mean"] <= 12
    assert 0 < runs["ttft_ms"]["mean"] < runs["total_ms"]["mean"]
    assert runs["finish_reasons"]["length"] > 0.5
