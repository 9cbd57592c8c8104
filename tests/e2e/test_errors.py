"""Requests that a real engine must refuse, and how it says so."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api import Api, Json

ECO: Json = {"mode": "manual", "power": 10}
LONG = "word " * 3000
MAX_MODEL_LEN = 2048


@pytest.mark.parametrize("prompt", [LONG, "word " * 40_000], ids=["tokens", "characters"])
def test_a_prompt_that_is_too_long_is_refused_with_the_limit_and_not_in_a_stream(api: Api, prompt: str) -> None:
    response = api.post("/api/inference", {"prompt": prompt, **ECO})

    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["retryable"]) == ("prompt_too_long", False)
    assert f"maximum context length is {MAX_MODEL_LEN} tokens" in error["message"]


def test_more_answer_than_the_context_has_room_for_is_refused(api: Api) -> None:
    response = api.post("/api/inference", {"prompt": "Hello", "max_tokens": MAX_MODEL_LEN, **ECO})

    assert response.status_code == 400
    assert response.json()["error"]["code"] == "prompt_too_long"
    assert f"max_tokens is {MAX_MODEL_LEN}" in response.json()["error"]["message"]


def test_a_long_prompt_is_answered_in_the_room_that_it_leaves(api: Api) -> None:
    answer = api.infer(prompt="word " * 2005, speed=0, temperature=0, **ECO)

    metrics = answer.one("metrics")
    assert metrics["prompt_tokens"] + metrics["completion_tokens"] <= MAX_MODEL_LEN
    assert answer.kinds[-1] == "done"


def chat(**over: Any) -> Json:
    return {"model": "eco", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, **over}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (chat(messages=[{"role": "user", "content": LONG}]), "maximum context length is 2048 tokens"),
        (chat(max_tokens=5000), "5000"),
        (chat(temperature=-1), "temperature"),
        ({"model": "eco"}, "messages"),
        (chat(top_p=7), "top_p"),
    ],
    ids=["long prompt", "max_tokens", "temperature", "no messages", "top_p"],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_bad_openai_request_gets_the_error_of_vllm(api: Api, body: Json, words: str, stream: bool) -> None:
    response = api.post("/v1/chat/completions", {**body, "stream": stream})

    assert response.status_code == 400
    assert response.headers["content-type"].startswith("application/json")
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == 400
    assert words in error["message"]


def test_the_tier_serves_on_after_refusals(api: Api) -> None:
    answer = api.infer(prompt="What is the capital of France?", temperature=0, max_tokens=8, **ECO)

    assert "Paris" in answer.text
