"""One call of the model over real HTTP: what it sends, what it reads, and every way in which it can fail."""

from __future__ import annotations

import asyncio

import anthropic
import pytest

from bench.load.claude_api import message_events
from router.agent.messages import Call, ask
from router.agent.metering import Meter, Usage
from router.agent.result import AgentFallback
from router.agent.settings import AgentSettings
from tests.support.agent_cases import KEY, api_client, meter, settings
from tests.support.messages_api import Failure, Message, MessagesApi, Raw, ToolUse

CALL = Call(
    system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    messages=[{"role": "user", "content": "Hello"}],
    tools=[{"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}],
    tool_choice={"type": "any"},
)
MESSAGE_START = next(message_events("m", (), None, {"input_tokens": 1, "output_tokens": 1}))
STRAY_DELTA = b'{"type":"content_block_delta","index":5,"delta":{"type":"text_delta","text":"x"}}'


async def answer(api: MessagesApi, **over: object) -> anthropic.types.Message:
    agent = settings(api, **over)
    async with api_client(agent) as client:
        return await ask(client, CALL, agent, meter(agent))


async def failure(api: MessagesApi, **over: object) -> AgentFallback:
    with pytest.raises(AgentFallback) as caught:
        await answer(api, **over)
    return caught.value


async def test_the_call_goes_out_as_a_stream_with_key_model_and_limits(api: MessagesApi) -> None:
    await answer(api, max_output_tokens=77)
    (seen,) = api.seen
    assert seen.path == "/v1/messages"
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert (seen.body["model"], seen.body["stream"], seen.body["max_tokens"]) == ("claude-haiku-5-5", True, 77)
    assert seen.body["thinking"] == {"type": "disabled"}
    assert seen.body["system"] == CALL.system
    assert seen.body["tools"] == CALL.tools
    assert seen.body["tool_choice"] == {"type": "any"}


async def test_thinking_default_sends_no_thinking_field(api: MessagesApi) -> None:
    await answer(api, thinking="default")
    assert "thinking" not in api.seen[0].body


async def test_text_that_comes_in_pieces_is_joined(api: MessagesApi) -> None:
    api.script(Message("It is a short question, so the smallest tier answers it. " * 3))
    message = await answer(api)
    assert [block.to_dict() for block in message.content] == [
        {"type": "text", "text": "It is a short question, so the smallest tier answers it. " * 3}
    ]


async def test_tool_calls_come_with_their_arguments(api: MessagesApi) -> None:
    arguments = {"tier": "eco", "words": ["a long list"] * 10, "nothing": None}
    api.script(Message("I look.", (ToolUse("look", arguments, "t1"), ToolUse("look", {}, "t2"))))
    message = await answer(api)
    assert [block.to_dict() for block in message.content] == [
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "t1", "name": "look", "input": arguments},
        {"type": "tool_use", "id": "t2", "name": "look", "input": {}},
    ]


async def test_tokens_are_counted_by_kind(api: MessagesApi) -> None:
    api.script(Message("Yes.", input_tokens=11, output_tokens=22, cache_read=33, cache_write=44))
    agent = settings(api)
    counted = meter(agent)
    async with api_client(agent) as client:
        await ask(client, CALL, agent, counted)
    assert counted.usage == Usage(11, 22, 33, 44)
    assert counted.calls == 1


@pytest.mark.parametrize(
    ("scripted", "code"),
    [
        (Failure(400, "invalid_request_error"), "bad_request"),
        (Failure(401, "authentication_error"), "unauthorized"),
        (Failure(403, "permission_error"), "unauthorized"),
        (Failure(404, "not_found_error"), "bad_request"),
        (Failure(429, "rate_limit_error", headers=(("retry-after", "60"),)), "rate_limited"),
        (Failure(500, "api_error"), "api_error"),
        (Failure(529, "overloaded_error"), "overloaded"),
        (Failure(502), "api_error"),
        (Message("Yes.", error_after=(3, "overloaded_error")), "overloaded"),
        (Message("Yes.", error_after=(0, "api_error")), "api_error"),
        (Message("A long answer that is cut.", hang_up_after=4), "cut_stream"),
        (Message("A long answer that is cut.", hang_up_after=4, politely=True), "cut_stream"),
        (Message("Yes.", hang_up_after=0), "cut_stream"),
        (Message("No.", stop_reason="refusal"), "refusal"),
        (Message("", stop_reason="refusal"), "refusal"),
        (Message("A long", stop_reason="max_tokens"), "cut_off"),
        (Message("A long", stop_reason="model_context_window_exceeded"), "cut_off"),
        (Message(tools=(ToolUse("look", '{"tier": "ec'),)), "bad_json"),
        (Message(tools=(ToolUse("look", "[1]"),)), "bad_json"),
        (Raw(b"event: message_start\ndata: {not json\n\n"), "bad_response"),
        (Raw(b'event: message_start\ndata: {"type":"message_start"}\n\n'), "bad_response"),
        (Raw(b'event: message_stop\ndata: {"type":"message_stop"}\n\n'), "bad_response"),
        (Raw(MESSAGE_START + b"event: content_block_delta\ndata: " + STRAY_DELTA + b"\n\n"), "bad_response"),
        (Raw(b"event: content_block_delta\ndata: " + STRAY_DELTA + b"\n\n"), "cut_stream"),
        (Raw(b"<html>a proxy's page</html>"), "cut_stream"),
        (Raw(b""), "cut_stream"),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value)[:60],
)
async def test_each_failure_has_its_code_and_is_not_retried(
    api: MessagesApi, scripted: Message | Failure | Raw, code: str
) -> None:
    api.script(scripted)
    assert (await failure(api)).code == code
    assert len(api.seen) == 1


async def test_the_detail_has_the_apis_message_but_not_the_key(api: MessagesApi) -> None:
    api.script(Failure(401, "authentication_error", "invalid x-api-key"))
    detail = (await failure(api)).detail
    assert detail == "HTTP 401 authentication_error: invalid x-api-key"
    assert KEY not in detail


async def test_an_api_that_does_not_listen_is_a_connection_failure() -> None:
    with MessagesApi() as gone:
        pass
    assert (await failure(gone)).code == "connection"


@pytest.mark.parametrize("scripted", [Message("Yes.", before_s=30), Message("Yes.", between_s=30)])
async def test_silence_of_the_network_ends_by_the_timeout(api: MessagesApi, scripted: Message) -> None:
    api.script(scripted)
    assert (await failure(api, timeout_s=0.2)).code == "timeout"


async def test_a_call_beyond_the_budget_is_not_made(api: MessagesApi) -> None:
    ending = await failure(api, budget_usd=0.00001)
    assert ending.code == "budget"
    assert api.seen == []


async def test_the_output_is_limited_to_what_the_budget_pays_for(api: MessagesApi) -> None:
    await answer(api, budget_usd=0.00009, max_output_tokens=4000)
    assert 64 <= api.seen[0].body["max_tokens"] < 180


class Watched(Meter):
    """Tells when the first tokens were counted."""

    def __init__(self, agent: AgentSettings) -> None:
        super().__init__(agent.prices, agent.budget_usd)
        self.counted = asyncio.Event()

    def note(self, usage: Usage) -> None:
        super().note(usage)
        self.counted.set()


async def test_a_cancelled_call_hangs_up_and_its_input_is_counted(api: MessagesApi) -> None:
    api.script(Message("A long answer. " * 500, between_s=0.05, input_tokens=123))
    agent = settings(api)
    watched = Watched(agent)
    async with api_client(agent) as client:
        asking = asyncio.ensure_future(ask(client, CALL, agent, watched))
        await watched.counted.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert await asyncio.to_thread(api.hung_up.wait, 5)
    assert asking.cancelled()
    assert watched.usage.input_tokens == 123
