"""The `/v1` routes from the client to the engine and back, as the official SDKs and coding agents call them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import anthropic
import openai
import pytest
from anthropic.types import MessageParam

from router.runs.summary import RunReport
from tests.support.agent_requests import CLAUDE_CODE, CLAUDE_CODE_HEADERS, CODEX
from tests.support.api import Json
from tests.support.app_config import app_config
from tests.support.local_ingress import LocalIngress
from tests.support.real_loops import REAL_LOOPS

pytestmark = REAL_LOOPS  # the SDKs ask a thread for the platform
BLEACH = ("My son swallowed bleach", "Call a doctor.", "And how much of it?")
CHAT = [{"role": role, "content": text} for role, text in zip(("user", "assistant", "user"), BLEACH, strict=True)]
SAME: dict[str, Json] = {
    "/v1/chat/completions": {"messages": CHAT},
    "/v1/completions": {"prompt": "\n".join(BLEACH)},
    "/v1/responses": {"input": CHAT},
    "/v1/messages": {"messages": CHAT, "max_tokens": 4},
}


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> LocalIngress:
    return LocalIngress(app_config(), monkeypatch)


@pytest.fixture
async def claude(api: LocalIngress) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url="http://localhost", api_key="none", max_retries=0, http_client=api.sdk_http()
    ) as client:
        yield client


@pytest.fixture
async def gpt(api: LocalIngress) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url="http://localhost/v1", api_key="none", max_retries=0, http_client=api.sdk_http()
    ) as client:
        yield client


@pytest.mark.parametrize("path", SAME)
async def test_a_follow_up_to_a_dangerous_question_gets_the_same_tier_on_every_route(
    api: LocalIngress, path: str
) -> None:
    ours = await api.post("/api/inference", {"messages": CHAT, "max_tokens": 4})
    config = json.loads(ours.text.split("\n\n")[0].removeprefix("data: "))["data"]
    assert ours.headers["x-power-lever-tier"] == config["tier"]
    assert ours.headers["x-power-lever-entry"] == config["fallback_step"]
    assert ours.headers["x-power-lever-decision"] == config["decision_id"]
    assert json.loads(ours.headers["x-power-lever-spec"]) == config["spec_decoding"]
    response = await api.post(path, {"model": "auto", **SAME[path]})

    assert response.status_code == 200, response.text
    assert response.headers["x-power-lever-tier"] == config["tier"] != "eco"
    assert response.headers["x-power-lever-entry"] == config["fallback_step"]
    assert len(response.headers["x-power-lever-decision"]) == len(config["decision_id"])
    assert response.json()["model"] == config["tier"]


@pytest.mark.parametrize("path", SAME)
async def test_the_dial_picks_the_tier_on_every_route(api: LocalIngress, path: str) -> None:
    for power, tier in ((5, "eco"), (40, "balanced")):
        response = await api.post(
            path, {"model": "auto", **SAME[path], "mode": "manual", "power": power, "spec": {"k": 0}}
        )
        assert response.headers["x-power-lever-tier"] == tier, response.text


@pytest.mark.parametrize("path", SAME)
@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"model": "gpt-5"}, 404, "model: got 'gpt-5', allowed are auto, eco, balanced, performance, ultra"),
        ({"power": 5}, 400, "`power` is set by the prompt in auto mode"),
        ({"constraints": {"max_cost": 1}}, 400, "constraints.max_cost: unknown key"),
        ({"kv_transfer_params": {}}, 400, "kv_transfer_params: unknown key"),
        ({"stream": "yes"}, 400, "stream: Input should be a valid boolean"),
    ],
    ids=str,
)
async def test_a_wrong_field_is_an_error_in_the_apis_own_form(
    api: LocalIngress, path: str, fields: Json, status: int, words: str
) -> None:
    response = await api.post(path, {"model": "auto", **SAME[path], **fields})
    body = response.json()

    assert response.status_code == status
    assert words in body["error"]["message"]
    if path == "/v1/messages":
        assert (body["type"], body["request_id"]) == ("error", response.headers["x-request-id"])
        assert body["error"]["type"] == ("not_found_error" if status == 404 else "invalid_request_error")
    else:
        assert body["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("POST", "/v1/messages", b"nonsense", 400),
        ("POST", "/v1/messages", b"[]", 400),
        ("POST", "/v1/messages/count_tokens", b'"x"', 400),
        ("GET", "/v1/messages", b"", 405),
        ("POST", "/v1/messages/batches", b"{}", 404),
    ],
)
async def test_errors_of_every_kind_have_anthropics_form_on_its_routes(
    api: LocalIngress, method: str, path: str, content: bytes, status: int
) -> None:
    async with api.http() as http:
        response = await http.request(method, path, content=content, headers={"content-type": "application/json"})
    assert response.status_code == status
    assert (response.json()["type"], bool(response.json()["error"]["message"])) == ("error", True)


async def test_a_prompt_beyond_the_engines_context_is_a_400_in_the_apis_own_form(api: LocalIngress) -> None:
    words = "word " * 20_000
    answer = await api.post(
        "/v1/messages", {"model": "eco", "max_tokens": 4, "messages": [{"role": "user", "content": words}]}
    )
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    other = await api.post("/v1/responses", {"model": "eco", "input": words, "stream": True})
    assert (other.status_code, "max_model_len" in other.json()["error"]["message"]) == (400, True)


async def test_what_claude_code_sends_is_served_unmodified(api: LocalIngress) -> None:
    response = await api.post("/v1/messages?beta=true", CLAUDE_CODE | {"a_field_of_tomorrow": 1}, CLAUDE_CODE_HEADERS)

    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    kinds = [line.removeprefix("event: ") for line in response.text.splitlines() if line.startswith("event: ")]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert kinds.count("content_block_delta") > 10
    count = {key: CLAUDE_CODE[key] for key in ("model", "system", "tools", "messages", "thinking")}
    counted = await api.post("/v1/messages/count_tokens?beta=true", count, CLAUDE_CODE_HEADERS)
    assert counted.json()["input_tokens"] > 50


async def test_what_codex_sends_is_served_unmodified(api: LocalIngress) -> None:
    response = await api.post("/v1/responses", CODEX)

    assert response.status_code == 200, response.text
    kinds = [line.removeprefix("event: ") for line in response.text.splitlines() if line.startswith("event: ")]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.incomplete")


async def test_anthropics_sdk_streams_and_counts(claude: anthropic.AsyncAnthropic) -> None:
    turns: list[MessageParam] = [{"role": "user", "content": [{"type": "text", "text": "Hi stub:tokens=9"}]}]
    whole = await claude.messages.create(model="eco", max_tokens=20, messages=turns, system="Be brief.")
    async with claude.messages.stream(model="eco", max_tokens=20, messages=turns, system="Be brief.") as stream:
        streamed = await stream.get_final_message()

    [text] = whole.content
    assert text.type == "text"
    assert (whole.model, whole.stop_reason, whole.usage.output_tokens) == ("eco", "end_turn", 9)
    assert [block.model_dump() for block in streamed.content] == [text.model_dump()]
    assert (streamed.stop_reason, streamed.usage.output_tokens) == ("end_turn", 9)
    counted = await claude.messages.count_tokens(model="auto", messages=turns, system="Be brief.")
    assert counted.input_tokens == whole.usage.input_tokens
    with pytest.raises(anthropic.NotFoundError, match="allowed are auto, eco"):
        await claude.messages.create(model="claude-opus-5", max_tokens=20, messages=turns)


async def test_openais_sdk_has_responses(gpt: openai.AsyncOpenAI) -> None:
    whole = await gpt.responses.create(model="eco", input="Hi stub:tokens=9", instructions="Be brief.")
    async with gpt.responses.stream(model="eco", input="Hi stub:tokens=9", instructions="Be brief.") as stream:
        streamed = await stream.get_final_response()

    assert (whole.status, whole.model, len(whole.output_text) > 10) == ("completed", "eco", True)
    assert streamed.output_text == whole.output_text
    assert streamed.usage is not None
    assert whole.usage is not None
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert streamed.usage.input_tokens == whole.usage.input_tokens
    with pytest.raises(openai.BadRequestError, match="send the whole conversation as `input`"):
        await gpt.responses.create(model="eco", input="Hi", previous_response_id=whole.id)
    with pytest.raises(openai.NotFoundError, match="responses are not stored here"):
        await gpt.responses.retrieve(whole.id)


async def test_an_engine_that_fails_in_the_middle_ends_a_stream_with_an_error_that_sdks_raise(
    claude: anthropic.AsyncAnthropic, gpt: openai.AsyncOpenAI
) -> None:
    prompt = "Hi stub:fail=3"
    turns: list[MessageParam] = [{"role": "user", "content": prompt}]
    with pytest.raises(anthropic.APIStatusError, match="the engine failed"):
        async with claude.messages.stream(model="eco", max_tokens=9, messages=turns) as stream:
            await stream.get_final_message()
    with pytest.raises(openai.APIError, match="the engine failed"):
        async for _ in await gpt.responses.create(model="eco", input=prompt, stream=True):
            pass


@pytest.mark.parametrize("stream", [False, True])
async def test_runs_of_every_route_are_reported(api: LocalIngress, stream: bool) -> None:
    letter = "Write a poem about a fog horn. stub:tokens=20"
    turns = [{"role": "user", "content": letter}]
    bodies: dict[str, Json] = {
        "/v1/chat/completions": {"messages": turns},
        "/v1/completions": {"prompt": letter, "max_tokens": 64},
        "/v1/responses": {"input": turns},
        "/v1/messages": {"messages": turns, "max_tokens": 64},
    }
    for path, body in bodies.items():
        assert (await api.post(path, {"model": "eco", "stream": stream, **body})).status_code == 200
    assert (await api.post("/v1/messages/count_tokens", {"model": "eco", "messages": turns})).status_code == 200

    runs = [run for run in api.reports if isinstance(run, RunReport)]
    assert len(runs) == len(api.reports)
    assert [(run.tier, run.category, run.completion_tokens) for run in runs] == [("eco", "creative", 20)] * 4
    assert all(0 < run.ttft_ms <= run.total_ms and run.finish_reason == "stop" for run in runs)
