"""The bodies of Anthropic's routes: messages, and the count of their tokens."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field

from serve_app.api.v1.body import V1Api
from serve_app.api.v1.fields import Object, Positive, SharedFields, Stops

_MAX_TOOLS: Final = 1024
"""Tools of a request. An agent with several tool servers has some hundred; their text counts as prompt too."""


class _MessagesFields(SharedFields, total=False):
    messages: list[Object]
    system: str | list[Object]
    max_tokens: Positive
    stop_sequences: Stops
    tools: Annotated[list[Object], Field(max_length=_MAX_TOOLS)]
    tool_choice: Object
    thinking: Object
    output_config: Object
    # No meaning: caches, regions, billing and fallbacks of Anthropic's servers
    betas: list[Any]
    billing_policy: Any
    cache_control: Object
    compaction: Object
    context_management: Object
    diagnostics: Object
    fallback_credit_token: Any
    fallbacks: Any
    inference_geo: str
    thread: Object
    user_profile_id: str
    workspace_id: str
    # What only Anthropic's servers have; only values that ask for nothing are accepted (`_check`).
    container: Any
    mcp_servers: list[Any]
    output_format: Any


_NO_MEANING: Final = frozenset(
    (
        "betas",
        "billing_policy",
        "cache_control",
        "compaction",
        "container",
        "context_management",
        "diagnostics",
        "fallback_credit_token",
        "fallbacks",
        "inference_geo",
        "mcp_servers",
        "output_format",
        "thread",
        "user_profile_id",
        "workspace_id",
    )
)
_NOT_HERE: Final = {
    "container": "containers are run by Anthropic's servers",
    "mcp_servers": "they are called by Anthropic's servers; call them yourself, and send their tools as `tools`",
    "output_format": "send it as `output_config.format`",
}


def _check(given: dict[str, Any]) -> list[str]:
    """Return what is wrong or not to be had here; take out Anthropic's own `speed`."""
    problems = [f"{key}: {why}" for key, why in _NOT_HERE.items() if given.get(key)]
    problems += _wrong_parts(given.get("messages"))
    if given.get("speed") in ("standard", "fast"):
        del given["speed"]  # Anthropic's; ours is a number
    tools = given.get("tools")
    for place, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, dict) and "input_schema" not in tool and isinstance(tool.get("type"), str):
            problems.append(
                f"tools.{place}: {tool['type']} is a tool that Anthropic defines or runs; define it with `input_schema`"
            )
    return problems


def _wrong_parts(messages: object) -> list[str]:
    """Return which parts of messages, and which inputs of tool calls, are no objects. vLLM names neither."""
    problems = []
    for place, message in enumerate(messages if isinstance(messages, list) else ()):
        content = message.get("content") if isinstance(message, dict) else None
        for number, part in enumerate(content if isinstance(content, list) else ()):
            where, value = f"messages.{place}.content.{number}", part
            if isinstance(part, dict):
                if part.get("type") != "tool_use" or part.get("input") is None:
                    continue
                where, value = f"{where}.input", part["input"]
            if not isinstance(value, dict):
                problems.append(f"{where}: must be an object, got {type(value).__name__}")
    return problems


MESSAGES: Final = V1Api("anthropic", _MessagesFields, ("max_tokens",), _NO_MEANING, _check, must_limit=True)
COUNT_TOKENS: Final = V1Api("anthropic", _MessagesFields, (), _NO_MEANING, _check)
