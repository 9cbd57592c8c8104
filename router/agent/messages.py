"""A thin client of the Messages API over Anthropic's SDK: one streamed call, and everything that can go wrong as data.

`Claude.ask` never raises for what the API or the network does. It does not retry: what it is for can do without, and
the time for it is short.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import anthropic
import httpx2

from router.agent.metering import Meter, Usage
from router.agent.report import Fallback, FallbackCode
from router.agent.settings import AgentSettings

if TYPE_CHECKING:
    from anthropic.types import MessageParam, RawMessageStreamEvent, TextBlockParam, ToolChoiceParam, ToolParam
    from anthropic.types import Usage as ApiUsage
    from anthropic.types.message_delta_usage import MessageDeltaUsage

LEAST_OUTPUT_TOKENS: Final = 64
"""With less than this left of the budget a call is not worth making."""
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


@dataclass(frozen=True, slots=True)
class Call:
    """One request to the model."""

    system: Sequence[TextBlockParam]
    messages: Sequence[MessageParam]
    tools: Sequence[ToolParam] = ()
    tool_choice: ToolChoiceParam | None = None

    def size_bytes(self) -> int:
        """How much is sent to the model, bytes of JSON."""
        return len(json.dumps([self.system, self.messages, self.tools]).encode())


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that the model wants called, with arguments that nobody has checked."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer of the model."""

    text: str
    tool_calls: tuple[ToolCall, ...]
    content: tuple[dict[str, Any], ...]
    """Its blocks, to be sent back in the next call of a conversation."""


class Claude:
    """The model, with the settings of its calls.

    Args:
        client: Anthropic's; whoever made it closes it.
        settings: model, output limit and thinking.
    """

    def __init__(self, client: anthropic.AsyncAnthropic, settings: AgentSettings) -> None:
        self._client = client
        self._settings = settings

    async def ask(self, call: Call, meter: Meter) -> Reply | Fallback:
        """One streamed call within the budget; what it uses is counted also when it is cut short."""
        most = self._settings.max_output_tokens
        affordable = meter.affordable_output(call.size_bytes(), most)
        if affordable < min(LEAST_OUTPUT_TOKENS, most):
            return Fallback("budget", f"the next call could pass budget_usd = {self._settings.budget_usd:g}")
        meter.begin()
        try:
            stream = await self._client.messages.create(
                model=self._settings.model,
                max_tokens=affordable,
                system=call.system,
                messages=call.messages,
                tools=call.tools or anthropic.omit,
                tool_choice=call.tool_choice or anthropic.omit,
                thinking={"type": "disabled"} if self._settings.thinking == "disabled" else anthropic.omit,
                stream=True,
            )
            async with stream:
                return await _read(stream, meter)
        except anthropic.APIError as error:
            return _of_api(error)
        except httpx2.TimeoutException:
            return Fallback("timeout", "the stream stopped")
        except httpx2.HTTPError as error:
            # The SDK wraps what fails before a response, not what fails within its stream.
            return Fallback("cut_stream", f"the stream was cut: {type(error).__name__}")
        except (AttributeError, TypeError, ValueError, LookupError) as error:
            # The SDK takes events as they come: one without a field that it must have shows when the field is read.
            return Fallback("bad_response", f"not an event stream of the Messages API: {type(error).__name__}")


def _of_api(error: anthropic.APIError) -> Fallback:
    if isinstance(error, anthropic.APITimeoutError):
        return Fallback("timeout", "no response in time")
    if isinstance(error, anthropic.APIConnectionError):
        return Fallback("connection", f"no connection: {type(error.__cause__).__name__}")
    if not isinstance(error, anthropic.APIStatusError):
        return Fallback("bad_response", type(error).__name__)
    known = _BY_ERROR_TYPE.get(error.type or "")
    # An error within a stream came with status 200: its type alone tells what it is.
    code = known or ("bad_request" if 400 <= error.status_code < 500 else "api_error")
    said = f"HTTP {error.status_code} {error.type or ''}: {error.api_message or 'no message'}"
    return Fallback(code, said[:_DETAIL_CHARS])


@dataclass(slots=True)
class _Block:
    """A content block under way."""

    start: dict[str, Any]
    parts: dict[str, list[str]] = field(default_factory=dict)
    """What came for it, by the name of the delta's field."""

    def add(self, name: str, part: str) -> None:
        self.parts.setdefault(name, []).append(part)

    def whole(self) -> dict[str, Any]:
        """The block as the API would have given it at once.

        Raises:
            ValueError: a tool's arguments are not a JSON object.
        """
        block = dict(self.start)
        for name, parts in self.parts.items():
            joined = "".join(parts)
            if name == "partial_json":
                block["input"] = json.loads(joined) if joined else {}
            else:
                block[name] = block.get(name, "") + joined
        if block["type"] == "tool_use" and not isinstance(block["input"], dict):
            raise ValueError("the arguments are not an object")
        return block


async def _read(events: AsyncIterable[RawMessageStreamEvent], meter: Meter) -> Reply | Fallback:
    blocks: dict[int, _Block] = {}
    usage, stop_reason, ended = Usage(), None, False
    async for event in events:
        match event.type:
            case "message_start":
                usage = _usage(usage, event.message.usage)
                meter.note(usage)
            case "content_block_start":
                blocks[event.index] = _Block(event.content_block.to_dict())
            case "content_block_delta":
                for name in ("text", "partial_json", "thinking", "signature"):
                    if isinstance(part := getattr(event.delta, name, None), str):
                        blocks[event.index].add(name, part)
            case "message_delta":
                stop_reason = event.delta.stop_reason
                usage = _usage(usage, event.usage)
                meter.note(usage)
            case "message_stop":
                ended = True
            case _:
                pass  # kinds to come
    if not ended:
        return Fallback("cut_stream", "the stream ended before the message did")
    if stop_reason == "refusal":
        return Fallback("refusal", "the model declined")
    if stop_reason not in ("end_turn", "tool_use", "stop_sequence"):
        return Fallback("cut_off", f"the message is not whole: {stop_reason}")
    try:
        content = tuple(block.whole() for block in blocks.values())
    except ValueError:
        return Fallback("bad_json", "the arguments of a tool are not a JSON object")
    return Reply(
        text="".join(block["text"] for block in content if block["type"] == "text").strip(),
        tool_calls=tuple(
            ToolCall(block["id"], block["name"], cast(dict[str, Any], block["input"]))
            for block in content
            if block["type"] == "tool_use"
        ),
        content=tuple(block for block in content if block.get("text") != ""),  # the API takes no empty ones
    )


def _usage(before: Usage, said: ApiUsage | MessageDeltaUsage) -> Usage:
    """Counts are cumulative; one that is left out keeps its value."""

    def newest(value: int | None, otherwise: int) -> int:
        return otherwise if value is None else value

    return Usage(
        input_tokens=newest(said.input_tokens, before.input_tokens),
        output_tokens=newest(said.output_tokens, before.output_tokens),
        cache_read_tokens=newest(said.cache_read_input_tokens, before.cache_read_tokens),
        cache_write_tokens=newest(said.cache_creation_input_tokens, before.cache_write_tokens),
    )
