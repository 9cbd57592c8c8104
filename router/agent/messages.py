"""The agent on the Messages API: one call that explains a plan, or a bounded loop of tool calls that makes one."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import anthropic
import httpx2

from router.agent.bounds import Case
from router.agent.metering import Meter, Usage
from router.agent.prompt import (
    SUBMIT_PLAN,
    explain_instructions,
    plan_instructions,
    plan_tools,
    request_text,
    system_blocks,
)
from router.agent.result import AgentChoice, AgentFallback, FallbackCode, time_limit
from router.agent.settings import MAX_TURNS, AgentSettings
from router.agent.tools import TOOLS, ToolContext, ToolError
from router.registry import Profile
from router.trace_steps import Clock, TraceStep, TraceValue

if TYPE_CHECKING:
    from anthropic.lib.streaming import AsyncMessageStream
    from anthropic.types import (
        Message,
        MessageParam,
        TextBlockParam,
        ToolChoiceParam,
        ToolParam,
        ToolResultBlockParam,
        ToolUseBlock,
    )

MAX_TOOLS_PER_TURN: Final = 8
"""More calls in one turn than there are tools and tiers to ask about are a loop."""
LEAST_OUTPUT_TOKENS: Final = 64
"""A call is not worth making if the budget leaves it less than this."""
_DETAIL_CHARS: Final = 200
_BY_ERROR_TYPE: Final[dict[str, FallbackCode]] = {
    "overloaded_error": "overloaded",
    "rate_limit_error": "rate_limited",
    "authentication_error": "unauthorized",
    "permission_error": "unauthorized",
    "billing_error": "unauthorized",
    "invalid_request_error": "bad_request",
    "not_found_error": "bad_request",
    "timeout_error": "timeout",
}


class MessagesAgent:
    """The agent for one profile.

    Args:
        client: the client of the Messages API; whoever made it closes it.
        profile: the registry; the model's instructions list its tiers.
        settings: model and bounds.
        clock: for the durations of tool calls, s.
    """

    def __init__(
        self,
        client: anthropic.AsyncAnthropic,
        profile: Profile,
        settings: AgentSettings,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self._explain_system = system_blocks(explain_instructions(profile))
        self._plan_system = system_blocks(plan_instructions(profile))
        self._tools = plan_tools()

    async def explain(self, case: Case, meter: Meter) -> str:
        """Return why the plan is as it is, in the model's words: one streamed call.

        Raises:
            AgentFallback: the model gave no explanation.
        """
        call = Call(self._explain_system, [self._request(case)])
        async with time_limit(self._settings.timeout_s):
            text = _text(await ask(self._client, call, self._settings, meter))
        if not text:
            raise AgentFallback("bad_response", "the model gave no text")
        return text

    async def choose(self, case: Case, meter: Meter, steps: list[TraceStep]) -> AgentChoice:
        """Return a plan, after as many rounds of tools as the model wants and the bounds allow.

        Args:
            case: the request and its deterministic plan.
            meter: counts what the calls use.
            steps: takes the trace steps of the tools that the model calls.

        Raises:
            AgentFallback: the model gave no plan.
        """
        async with time_limit(self._settings.timeout_s):
            return await self._choose(case, meter, steps)

    async def _choose(self, case: Case, meter: Meter, steps: list[TraceStep]) -> AgentChoice:
        context = ToolContext(case.profile, case.observation, case.request)
        messages = [self._request(case)]
        called: set[str] = set()
        for turn in range(1, MAX_TURNS + 1):
            call = Call(self._plan_system, messages, self._tools, self._tool_choice(last=turn == MAX_TURNS))
            message = await ask(self._client, call, self._settings, meter)
            tool_calls = [block for block in message.content if block.type == "tool_use"]
            for tool_call in tool_calls:
                if tool_call.name == SUBMIT_PLAN:
                    return AgentChoice.parse(tool_call.input)
            if not tool_calls:
                return _choice_in(_text(message))
            _refuse_loops(tool_calls, called)
            results = [self._tool_result(tool_call, context, steps) for tool_call in tool_calls]
            results[-1]["cache_control"] = {"type": "ephemeral"}
            # Only the newest results have a cache mark: the API takes four, and the fixed part has one.
            for earlier in messages[2::2]:
                cast("list[ToolResultBlockParam]", earlier["content"])[-1].pop("cache_control", None)
            messages += [_assistant_message(message), {"role": "user", "content": results}]
        raise AgentFallback("loop", f"no plan after {MAX_TURNS} turns")

    def _request(self, case: Case) -> MessageParam:
        return {"role": "user", "content": request_text(case, self._settings.prompt_chars)}

    def _tool_choice(self, *, last: bool) -> ToolChoiceParam:
        if self._settings.thinking != "disabled":
            return {"type": "auto"}  # the API does not let a model that thinks be forced
        return {"type": "tool", "name": SUBMIT_PLAN} if last else {"type": "any"}

    def _tool_result(self, call: ToolUseBlock, context: ToolContext, steps: list[TraceStep]) -> ToolResultBlockParam:
        began = self._clock()
        result: ToolResultBlockParam = {"type": "tool_result", "tool_use_id": call.id}
        data: dict[str, TraceValue]
        try:
            answer = TOOLS[call.name].call(cast("dict[str, Any]", call.input), context)
        except ToolError as error:
            data = {"error": str(error)}
            result |= {"content": str(error), "is_error": True}
        else:
            data = answer.model_dump()
            result["content"] = answer.model_dump_json()
        steps.append(TraceStep(call.name, data, (self._clock() - began) * 1000))
        return result


def _refuse_loops(tool_calls: Sequence[ToolUseBlock], called: set[str]) -> None:
    """Raise AgentFallback for tools that do not exist, for too many calls, and for a call that was made before."""
    unknown = [call.name for call in tool_calls if call.name not in TOOLS]
    if unknown:
        raise AgentFallback("unknown_tool", f"the model called {unknown[0][:40]!r}")
    if len(tool_calls) > MAX_TOOLS_PER_TURN:
        raise AgentFallback("loop", f"{len(tool_calls)} tool calls in one turn")
    for call in tool_calls:
        key = f"{call.name} {json.dumps(call.input, sort_keys=True)}"
        if key in called:
            raise AgentFallback("loop", f"{call.name} was called again with the same arguments")
        called.add(key)


def _choice_in(text: str) -> AgentChoice:
    """Return a plan that the model wrote as JSON instead of calling the tool."""
    if not text:
        raise AgentFallback("no_plan", "the model gave neither a plan nor a tool call")
    try:
        submitted = json.loads(text.removeprefix("```json").removeprefix("```").removesuffix("```"))
    except ValueError as error:
        raise AgentFallback("bad_json", "the model's answer is not a plan in JSON") from error
    return AgentChoice.parse(submitted)


def _text(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text").strip()


def _assistant_message(message: Message) -> MessageParam:
    """Return the model's answer as the next call sends it back; the API takes no empty texts."""
    blocks = [block.to_dict() for block in message.content if block.type != "text" or block.text]
    return cast("MessageParam", {"role": "assistant", "content": blocks})


# --- one call -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """One request to the model."""

    system: Sequence[TextBlockParam]
    messages: Sequence[MessageParam]
    tools: Sequence[ToolParam] = ()
    tool_choice: ToolChoiceParam | None = None

    def size_bytes(self) -> int:
        """Return how much is sent to the model, bytes of JSON."""
        return len(json.dumps([self.system, self.messages, self.tools]).encode())


async def ask(client: anthropic.AsyncAnthropic, call: Call, settings: AgentSettings, meter: Meter) -> Message:
    """Return the model's whole answer to one streamed call within the budget.

    It does not retry: the caller can do without an answer, and has little time. What a call uses is counted also if
    it is cut short.

    Raises:
        AgentFallback: the budget does not pay for the call, or the API or the network failed.
    """
    most = settings.max_output_tokens
    affordable = meter.affordable_output(call.size_bytes(), most)
    if affordable < min(LEAST_OUTPUT_TOKENS, most):
        raise AgentFallback("budget", f"the next call could exceed budget_usd = {settings.budget_usd:g}")
    meter.begin()
    try:
        async with client.messages.stream(
            model=settings.model,
            max_tokens=affordable,
            system=call.system,
            messages=call.messages,
            tools=call.tools or anthropic.omit,
            tool_choice=call.tool_choice or anthropic.omit,
            thinking={"type": "disabled"} if settings.thinking == "disabled" else anthropic.omit,
        ) as stream:
            return await _read(stream, meter)
    except anthropic.APIError as error:
        raise _fallback_of(error) from error
    except httpx2.TimeoutException as error:
        raise AgentFallback("timeout", "the stream stopped") from error
    except httpx2.HTTPError as error:
        # The SDK wraps what fails before a response, not what fails within its stream.
        raise AgentFallback("cut_stream", f"the stream was cut: {type(error).__name__}") from error
    except (AttributeError, TypeError, ValueError, LookupError, AssertionError) as error:
        # The SDK does not validate events: a missing field shows when it is read, a missing beginning as an assertion.
        raise AgentFallback("bad_response", f"not a stream of the Messages API: {type(error).__name__}") from error


def _fallback_of(error: anthropic.APIError) -> AgentFallback:
    if isinstance(error, anthropic.APITimeoutError):
        return AgentFallback("timeout", "no response in time")
    if isinstance(error, anthropic.APIConnectionError):
        return AgentFallback("connection", f"no connection: {type(error.__cause__).__name__}")
    if not isinstance(error, anthropic.APIStatusError):
        return AgentFallback("bad_response", type(error).__name__)
    known = _BY_ERROR_TYPE.get(error.type or "")
    # An error within a stream came with status 200: its type alone says what it is.
    code = known or ("bad_request" if 400 <= error.status_code < 500 else "api_error")
    detail = f"HTTP {error.status_code} {error.type or ''}: {error.api_message or 'no message'}"
    return AgentFallback(code, detail[:_DETAIL_CHARS])


async def _read(stream: AsyncMessageStream[None], meter: Meter) -> Message:
    arguments: defaultdict[int, str] = defaultdict(str)
    ended = False
    async for event in stream:
        if event.type in ("message_start", "message_delta"):
            meter.note(_usage(stream.current_message_snapshot))
        elif event.type == "content_block_delta" and event.delta.type == "input_json_delta":
            arguments[event.index] += event.delta.partial_json
        elif event.type == "message_stop":
            ended = True
    if not ended:
        raise AgentFallback("cut_stream", "the stream ended before the message did")
    message = stream.current_message_snapshot
    if message.stop_reason == "refusal":
        raise AgentFallback("refusal", "the model declined")
    if message.stop_reason not in ("end_turn", "tool_use", "stop_sequence"):
        raise AgentFallback("cut_off", f"the message is not whole: {message.stop_reason}")
    if not all(_is_object(text) for text in arguments.values()):
        raise AgentFallback("bad_json", "the arguments of a tool are not a JSON object")
    return message


def _is_object(text: str) -> bool:
    """Return whether a tool's arguments are a whole JSON object: the SDK's snapshot completes one that was cut."""
    try:
        return text == "" or isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _usage(message: Message) -> Usage:
    used = message.usage
    return Usage(
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cache_read_tokens=used.cache_read_input_tokens or 0,
        cache_write_tokens=used.cache_creation_input_tokens or 0,
    )
