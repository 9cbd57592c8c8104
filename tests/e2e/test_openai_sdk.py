"""The official OpenAI SDK against real engines: what `vllm serve` does with a request, the tier's engine does too."""

from __future__ import annotations

import json

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def test_a_chat_streams_with_usage_at_the_end(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="eco", messages=QUESTION, temperature=0, max_tokens=24)
    chunks = list(
        client.chat.completions.create(
            model="eco",
            messages=QUESTION,
            temperature=0,
            max_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
        )
    )

    assert "Paris" in (whole.choices[0].message.content or "")
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.usage for chunk in chunks if chunk.usage] == [chunks[-1].usage]
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    for usage in (whole.usage, chunks[-1].usage):
        took = (usage.model_extra or {})["power_lever"]
        assert took["tier"] == "eco"
        assert took["busy_s"] > 0
        assert took["energy"]["wh"] > 0
        assert (took["energy"]["source"], took["energy"]["reason"]) == (
            "modelled",
            "no GPU: a CPU has no energy counter",
        )
        assert 1 <= took["mean_batch"] < 1.2, "it was alone on its engine"
    finishes = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert [reason for reason in finishes if reason] == [whole.choices[0].finish_reason]


def test_a_completion_streams(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="eco", prompt="The capital of France is", temperature=0, max_tokens=8)
    chunks = list(
        client.completions.create(
            model="eco", prompt="The capital of France is", temperature=0, max_tokens=8, stream=True
        )
    )

    assert "Paris" in whole.choices[0].text
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text


def test_stop_strings_pass_through(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="eco", messages=QUESTION, temperature=0, max_tokens=24, stop=["Paris"]
    )

    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == "The capital of France is "


def test_log_probabilities_pass_through(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="eco", messages=QUESTION, temperature=0, max_tokens=4, logprobs=True, top_logprobs=3
    )

    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    tokens = logprobs.content or []
    assert len(tokens) == 4
    for token in tokens:
        assert token.logprob <= 0
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].logprob == pytest.approx(token.logprob)  # greedy took the likeliest
    assert "".join(token.token for token in tokens) == answer.choices[0].message.content


def test_a_json_schema_shapes_the_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="performance",
        messages=[{"role": "user", "content": "Name a city and the year it was founded, as JSON."}],
        temperature=0,
        max_tokens=48,
        response_format={
            "type": "json_schema",
            "json_schema": {
                "name": "city",
                "schema": {
                    "type": "object",
                    "properties": {"city": {"enum": ["Paris", "Oslo"]}, "large": {"type": "boolean"}},
                    "required": ["city", "large"],
                    "additionalProperties": False,
                },
            },
        },
    )

    parsed = json.loads(answer.choices[0].message.content or "")
    assert set(parsed) == {"city", "large"}
    assert parsed["city"] in ("Paris", "Oslo")
    assert isinstance(parsed["large"], bool)


def test_a_named_tool_is_called_with_arguments_of_its_schema(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="performance",
        messages=[{"role": "user", "content": "How is the weather in Oslo?"}],
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        temperature=0,
        max_tokens=48,
    )

    [call] = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Oslo")


def test_a_request_that_brings_tools_may_be_answered_without_one(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="eco", messages=QUESTION, tools=[WEATHER], temperature=0, max_tokens=24
    )

    assert not answer.choices[0].message.tool_calls
    assert "Paris" in (answer.choices[0].message.content or "")


def test_model_auto_is_answered_by_the_tier_that_the_router_picks(client: openai.OpenAI) -> None:
    answer = client.chat.completions.with_raw_response.create(
        model="auto", messages=QUESTION, temperature=0, max_tokens=4
    )

    assert answer.headers["x-power-lever-tier"] == "eco"
    assert answer.parse().model == "eco"
