"""The agent on the Messages API: one call that explains a plan, or a bounded loop of tool calls that makes one."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final, cast

from pydantic import ValidationError

from router.agent.bounds import Case
from router.agent.choice import AgentChoice, Chosen
from router.agent.deadline import within
from router.agent.messages import Call, Claude, Reply, ToolCall
from router.agent.metering import Meter
from router.agent.prompt import (
    SUBMIT_PLAN,
    explain_instructions,
    plan_instructions,
    plan_tools,
    request_text,
    system_blocks,
)
from router.agent.report import Fallback
from router.agent.settings import AgentSettings
from router.agent.tools import TOOLS, ToolContext, ToolError
from router.errors import describe_problems
from router.plan import Clock, TraceStep, TraceValue
from router.registry import Profile

if TYPE_CHECKING:
    from anthropic.types import MessageParam, TextBlockParam, ToolChoiceParam, ToolParam, ToolResultBlockParam

MOST_TOOLS_A_TURN: Final = 8
"""More calls in one turn than there are tools and tiers to ask about are a loop."""


class MessagesAgent:
    """The agent for one profile.

    Args:
        claude: the model.
        profile: the registry; its tiers are part of what the model is told.
        settings: bounds of time, money and turns.
        clock: for the durations of tool calls, s.
    """

    def __init__(
        self, claude: Claude, profile: Profile, settings: AgentSettings, clock: Clock = time.perf_counter
    ) -> None:
        self._claude = claude
        self._profile = profile
        self._settings = settings
        self._clock = clock
        self._explaining = system_blocks(explain_instructions(profile))
        self._planning = system_blocks(plan_instructions(profile))
        self._tools = plan_tools()

    async def explain(self, case: Case, meter: Meter) -> str | Fallback:
        """Why this plan, in the model's words: one streamed call."""
        call = Call(self._explaining, [{"role": "user", "content": self._request(case)}])
        reply = await within(self._settings.timeout_s, self._claude.ask(call, meter))
        if isinstance(reply, Fallback):
            return reply
        return reply.text or Fallback("bad_response", "the model said nothing")

    async def choose(self, case: Case, meter: Meter) -> Chosen:
        """A plan, after as many rounds of tools as the model wants and the settings allow."""
        loop = _Loop(self._claude, self._settings, self._planning, self._tools, case, meter, self._clock)
        ending = await within(self._settings.timeout_s, loop.run(self._request(case)))
        return Chosen(ending, tuple(loop.steps))

    def _request(self, case: Case) -> str:
        return request_text(case, self._settings.prompt_chars, self._settings.tier_steps)


class _Loop:
    """One conversation with the model."""

    def __init__(
        self,
        claude: Claude,
        settings: AgentSettings,
        system: list[TextBlockParam],
        tools: list[ToolParam],
        case: Case,
        meter: Meter,
        clock: Clock,
    ) -> None:
        self._claude = claude
        self._settings = settings
        self._system = system
        self._tools = tools
        self._context = ToolContext(case.profile.tiers, case.observation, case.request)
        self._meter = meter
        self._clock = clock
        self._asked: set[str] = set()
        self.steps: list[TraceStep] = []

    async def run(self, request: str) -> AgentChoice | Fallback:
        messages: list[MessageParam] = [{"role": "user", "content": request}]
        for turn in range(1, self._settings.max_turns + 1):
            last = turn == self._settings.max_turns
            reply = await self._claude.ask(
                Call(self._system, messages, self._tools, self._tool_choice(last)), self._meter
            )
            if isinstance(reply, Fallback):
                return reply
            ending = self._ending(reply)
            if ending is not None:
                return ending
            results = [self._result(call) for call in reply.tool_calls]
            results[-1]["cache_control"] = {"type": "ephemeral"}
            messages.append(cast("MessageParam", {"role": "assistant", "content": list(reply.content)}))
            # Only the newest results carry a mark: the API takes four, and the fixed part has one.
            for earlier in messages[2:-1:2]:
                cast("list[ToolResultBlockParam]", earlier["content"])[-1].pop("cache_control", None)
            messages.append({"role": "user", "content": results})
        return Fallback("loop", f"no plan after {self._settings.max_turns} turns")

    def _tool_choice(self, last: bool) -> ToolChoiceParam:
        if self._settings.thinking != "disabled":
            return {"type": "auto"}  # the API lets a model that thinks not be forced
        return {"type": "tool", "name": SUBMIT_PLAN} if last else {"type": "any"}

    def _ending(self, reply: Reply) -> AgentChoice | Fallback | None:
        """The plan or the end without one; None: the tools that the model called are to be run."""
        for call in reply.tool_calls:
            if call.name == SUBMIT_PLAN:
                return _choice(call.arguments)
        if not reply.tool_calls:
            return _choice_in(reply.text)
        unknown = [call.name for call in reply.tool_calls if call.name not in TOOLS]
        if unknown:
            return Fallback("unknown_tool", f"the model called {unknown[0][:40]!r}")
        if len(reply.tool_calls) > MOST_TOOLS_A_TURN:
            return Fallback("loop", f"{len(reply.tool_calls)} tool calls in one turn")
        for call in reply.tool_calls:
            key = f"{call.name} {json.dumps(call.arguments, sort_keys=True)}"
            if key in self._asked:
                return Fallback("loop", f"{call.name} was called again with the same arguments")
            self._asked.add(key)
        return None

    def _result(self, call: ToolCall) -> ToolResultBlockParam:
        began = self._clock()
        result: ToolResultBlockParam = {"type": "tool_result", "tool_use_id": call.id}
        try:
            answer = TOOLS[call.name].call(call.arguments, self._context)
        except ToolError as error:
            self._step(call.name, {"error": str(error)}, began)
            return {**result, "content": str(error), "is_error": True}
        self._step(call.name, answer.model_dump(), began)
        return {**result, "content": answer.model_dump_json()}

    def _step(self, name: str, result: dict[str, object], began: float) -> None:
        self.steps.append(TraceStep(name, cast("dict[str, TraceValue]", result), (self._clock() - began) * 1000))


def _choice(arguments: object) -> AgentChoice | Fallback:
    try:
        return AgentChoice.model_validate(arguments)
    except ValidationError as error:
        return Fallback("bad_plan", "; ".join(describe_problems(error, AgentChoice))[:200])


def _choice_in(text: str) -> AgentChoice | Fallback:
    """A plan that the model wrote instead of calling the tool."""
    if not text:
        return Fallback("no_plan", "the model gave neither a plan nor a tool call")
    try:
        return _choice(json.loads(text.removeprefix("```json").removeprefix("```").removesuffix("```")))
    except ValueError:
        return Fallback("bad_json", "the model's answer is not a plan in JSON")
