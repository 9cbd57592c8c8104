"""The stub's `/v1` routes, over HTTP semantics without a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest

from router.registry import Speculation
from router.spec_params import SpecParams
from serve_app.engine.interface import Token, TokenStep
from serve_app.engine.stub import LEARNED_TAU, StubEngine
from tests.support.requests import ENTRY, generation

CHAT = {"model": "eco", "messages": [{"role": "user", "content": "stub:tokens=9"}]}
COMPLETION = {"model": "eco", "prompt": "stub:tokens=9"}


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(await StubEngine(ENTRY, 0, obeys_directives=True).http_app())
    async with httpx.AsyncClient(transport=transport, base_url="http://stub") as client:
        yield client


async def expected_text() -> str:
    tokens: list[Token] = []
    async for item in StubEngine(ENTRY, 0, obeys_directives=True).generate(generation("stub:tokens=9")):
        tokens += item.tokens if isinstance(item, TokenStep) else []
    return "".join(token.text for token in tokens)


async def stream(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = await client.post(path, json=body | {"stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [orjson.loads(line) for line in lines]


async def test_a_chat_is_answered_as_a_chat_completion(client: httpx.AsyncClient) -> None:
    body = (await client.post("/v1/chat/completions", json=CHAT, headers={"x-request-id": "r7"})).json()
    assert (body["id"], body["object"], body["model"]) == ("r7", "chat.completion", "eco")
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": await expected_text()}
    assert choice["finish_reason"] == "stop"


async def test_a_prompt_is_answered_as_a_text_completion(client: httpx.AsyncClient) -> None:
    body = (await client.post("/v1/completions", json=COMPLETION)).json()
    assert body["object"] == "text_completion"
    assert body["choices"] == [{"index": 0, "finish_reason": "stop", "text": await expected_text()}]


async def test_a_chat_streams_one_chunk_a_token_then_the_finish_reason_then_done(client: httpx.AsyncClient) -> None:
    chunks = await stream(client, "/v1/chat/completions", CHAT)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["finish_reason"] for choice in choices] == [None] * 9 + ["stop"]
    assert "".join(choice["delta"]["content"] for choice in choices) == await expected_text()


async def test_a_completion_streams_the_text_of_the_whole_answer(client: httpx.AsyncClient) -> None:
    chunks = await stream(client, "/v1/completions", COMPLETION)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == await expected_text()


async def test_max_tokens_is_kept(client: httpx.AsyncClient) -> None:
    body = (await client.post("/v1/completions", json=COMPLETION | {"max_tokens": 4})).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert len(await stream(client, "/v1/completions", COMPLETION | {"max_tokens": 4})) == 4 + 1


async def test_benchmark_clients_get_the_requested_length_and_its_usage(client: httpx.AsyncClient) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "three words here"}]}]
    body = {"model": "eco", "messages": parts, "max_completion_tokens": 4, "stream_options": {"include_usage": True}}
    *_, last = await stream(client, "/v1/chat/completions", body)
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}
    whole = (await client.post("/v1/chat/completions", json=body | {"stream_options": None})).json()
    assert whole["usage"] == last["usage"]


async def test_the_answer_says_what_was_drafted_by_whom_as_the_ingress_asked() -> None:
    both = Speculation(method="draft_model", draft="d", k_max=4, drafts="own")
    transport = httpx.ASGITransport(await StubEngine(ENTRY.model_copy(update={"speculation": both}), 0).http_app())
    spec, _ = SpecParams(k=3, tau="auto", drafts="ngram").resolve(both)
    body = COMPLETION | {"max_tokens": 40, "vllm_xargs": spec.to_arguments("code")}
    async with httpx.AsyncClient(transport=transport, base_url="http://stub") as client:
        whole = (await client.post("/v1/completions", json=body)).json()
        *_, last = await stream(client, "/v1/completions", body | {"stream_options": {"include_usage": True}})
    done = whole["metrics"]["speculative_decoding"]
    assert (done["drafts"].keys(), done["tau"], done["stopped_by_tau"]) == ({"ngram"}, LEARNED_TAU, False)
    assert last["metrics"] == whole["metrics"]


def kinds_of(response: httpx.Response) -> list[str]:
    events = [block.split("\n") for block in response.text.split("\n\n") if block]
    for named, data in events:
        assert named == f"event: {orjson.loads(data.removeprefix('data: '))['type']}"
    return [named.removeprefix("event: ") for named, _ in events]


async def test_a_message_is_answered_whole_and_in_events(client: httpx.AsyncClient) -> None:
    body = {"model": "eco", "max_tokens": 20, "messages": [{"role": "user", "content": "stub:tokens=9"}]}
    whole = (await client.post("/v1/messages", json=body)).json()
    assert whole["content"] == [{"type": "text", "text": await expected_text()}]
    assert (whole["stop_reason"], whole["usage"]) == ("end_turn", {"input_tokens": 3, "output_tokens": 9})
    kinds = kinds_of(await client.post("/v1/messages", json=body | {"stream": True}))
    deltas = ["content_block_delta"] * 9
    ends = ["content_block_stop", "message_delta", "message_stop"]
    assert kinds == ["message_start", "content_block_start", *deltas, *ends]


async def test_a_response_is_answered_whole_and_in_events(client: httpx.AsyncClient) -> None:
    body = {"model": "eco", "max_output_tokens": 4, "input": [{"role": "user", "content": "stub:tokens=9"}]}
    whole = (await client.post("/v1/responses", json=body)).json()
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert whole["usage"]["output_tokens"] == 4
    kinds = kinds_of(await client.post("/v1/responses", json=body | {"stream": True}))
    assert kinds[:3] == ["response.created", "response.output_item.added", "response.content_part.added"]
    assert kinds[3:7] == ["response.output_text.delta"] * 4
    assert kinds[-1] == "response.incomplete"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_is_a_400_in_vllms_form(client: httpx.AsyncClient, path: str, stream: bool) -> None:
    turns = [{"role": "user", "content": "word " * ENTRY.max_model_len}]
    body = {"model": "eco", "messages": turns, "input": turns, "stream": stream}
    response = await client.post(path, json=body)
    assert response.status_code == 400
    assert response.json().get("type") == ("error" if path == "/v1/messages" else None)
    assert "max_model_len" in response.json()["error"]["message"]
