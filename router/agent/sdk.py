"""The agent on the Claude Agent SDK (the extra `agent-sdk`).

It has the router's tools as an MCP server in this process, a JSON schema for the plan, and a subagent that rates
prompts. The SDK starts its own program (Claude Code) for each plan, which takes a second or more: use this mode if you
want the SDK's loop, not for the fastest plan. The program gets no built-in tool except the one that starts the
subagent, no settings of the machine, and a folder of its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final, cast

from claude_agent_sdk import (
    AgentDefinition,
    ClaudeAgentOptions,
    ClaudeSDKError,
    CLINotFoundError,
    McpSdkServerConfig,
    Message,
    ProcessError,
    ResultMessage,
    query,
)

from router.agent.bounds import Case
from router.agent.mcp_server import tool_server
from router.agent.metering import Meter, Usage
from router.agent.prompt import plan_instructions, request_text
from router.agent.result import AgentChoice, AgentFallback, FallbackCode, time_limit
from router.agent.settings import MAX_TURNS, AgentSettings
from router.agent.tools import CLASSIFY_PROMPT, TOOLS, ToolContext, json_schema
from router.registry import Profile
from router.trace_steps import TraceStep

SERVER: Final = "router"
SUBAGENT_TOOL: Final = "Agent"
CLASSIFIER: Final = "classifier"
_ENDING: Final = (
    f"If you doubt the difficulty, ask the {CLASSIFIER} subagent once. Then give your plan as the structured "
    "output; its reason goes to the user."
)
_PLAIN_PROGRAM: Final = {
    "CLAUDE_AGENT_SDK_DISABLE_BUILTIN_AGENTS": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    "CLAUDE_CODE_MAX_RETRIES": "0",
}
"""No subagents except ours, which runs in the foreground; no calls except those of the plan, and no retries."""
_ENDINGS: Final[dict[str, FallbackCode]] = {
    "error_max_turns": "loop",
    "error_max_budget_usd": "budget",
    "error_max_structured_output_retries": "bad_json",
}
_BY_STATUS: Final[dict[int, FallbackCode]] = {
    401: "unauthorized",
    403: "unauthorized",
    429: "rate_limited",
    529: "overloaded",
}


def tool_name(name: str) -> str:
    """Return the name of a router's tool in the SDK's program."""
    return f"mcp__{SERVER}__{name}"


class SdkAgent:
    """The agent for one profile.

    Args:
        profile: the registry.
        settings: model and bounds.
        key: of the Messages API.
    """

    def __init__(self, profile: Profile, settings: AgentSettings, key: str) -> None:
        self._profile = profile
        self._settings = settings
        self._key = key

    async def choose(self, case: Case, meter: Meter, steps: list[TraceStep]) -> AgentChoice:
        """Return a plan of the SDK's agent; `steps` takes the trace steps of the tools that it calls.

        Raises:
            AgentFallback: the agent gave no plan.
        """
        async with time_limit(self._settings.timeout_s):
            return await self._run(case, meter, steps)

    async def _run(self, case: Case, meter: Meter, steps: list[TraceStep]) -> AgentChoice:
        text = request_text(case, self._settings.prompt_chars)
        with tempfile.TemporaryDirectory(prefix="power-lever-agent-", ignore_cleanup_errors=True) as folder:
            try:
                messages = cast(
                    "AsyncIterator[Message]", query(prompt=text, options=self._options(case, steps, folder))
                )
                return await _outcome(messages, meter)
            except CLINotFoundError as error:
                raise AgentFallback("not_installed", str(error)[:200]) from error
            except ProcessError as error:
                raise AgentFallback("api_error", f"the Agent SDK's program ended with {error.exit_code}") from error
            except ClaudeSDKError as error:
                raise AgentFallback("bad_response", f"{type(error).__name__}: {error}"[:200]) from error

    def _options(self, case: Case, steps: list[TraceStep], folder: str) -> ClaudeAgentOptions:
        context = ToolContext(case.profile, case.observation, case.request)

        async def read_context() -> ToolContext:
            return context

        server = McpSdkServerConfig(type="sdk", name=SERVER, instance=tool_server(read_context, steps.append))
        classifier = AgentDefinition(
            description="Rates the prompt of the request: its category, and its difficulty from 1 to 10.",
            prompt="Call classify_prompt without arguments: it looks at the prompt of the request. Then say in one "
            "line its category, its difficulty from 1 to 10, and why. You may differ from the tool by one point.",
            tools=[tool_name(CLASSIFY_PROMPT.name)],
            model="inherit",
        )
        environment = {
            "ANTHROPIC_API_KEY": self._key,
            "CLAUDE_CONFIG_DIR": folder,
            **_PLAIN_PROGRAM,
        }
        if self._settings.base_url is not None:
            environment["ANTHROPIC_BASE_URL"] = self._settings.base_url
        return ClaudeAgentOptions(
            model=self._settings.model,
            system_prompt=plan_instructions(self._profile, _ENDING),
            tools=[SUBAGENT_TOOL],
            allowed_tools=[SUBAGENT_TOOL, *(tool_name(name) for name in TOOLS)],
            permission_mode="dontAsk",
            mcp_servers={SERVER: server},
            strict_mcp_config=True,
            agents={CLASSIFIER: classifier},
            setting_sources=[],
            output_format={"type": "json_schema", "schema": json_schema(AgentChoice)},
            max_turns=MAX_TURNS,
            max_budget_usd=self._settings.budget_usd,
            thinking={"type": "disabled"} if self._settings.thinking == "disabled" else None,
            effort="low",
            cwd=folder,
            env=environment,
            extra_args={"disable-slash-commands": None, "no-session-persistence": None},
        )


async def _outcome(messages: AsyncIterator[Message], meter: Meter) -> AgentChoice:
    async with aclosing(cast("Any", messages)):
        async for message in messages:
            if isinstance(message, ResultMessage):
                meter.charge(_usage(message), message.total_cost_usd, message.num_turns)
                return _choice(message)
    raise AgentFallback("cut_stream", "the Agent SDK's program gave no result")


def _usage(message: ResultMessage) -> Usage:
    """Return what the agent and its subagent used; `message.usage` has only the agent's own."""
    total = Usage()
    for used in (message.model_usage or {}).values():
        total += Usage(
            used["inputTokens"], used["outputTokens"], used["cacheReadInputTokens"], used["cacheCreationInputTokens"]
        )
    return total


def _choice(message: ResultMessage) -> AgentChoice:
    if message.subtype in _ENDINGS:
        raise AgentFallback(_ENDINGS[message.subtype], message.subtype)
    if message.is_error or message.subtype != "success":
        status, reason = message.api_error_status, message.result or "; ".join(message.errors or ())
        client_error: FallbackCode = "bad_request" if status is not None and 400 <= status < 500 else "api_error"
        raise AgentFallback(_BY_STATUS.get(status or 0, client_error), f"{message.subtype}: {reason}"[:200])
    if message.structured_output is None:
        raise AgentFallback("no_plan", "the model gave no plan")
    return AgentChoice.parse(message.structured_output)
