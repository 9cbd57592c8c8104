"""The router agent of one ingress replica: its client, how many use it at a time, and what each request gets of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from router.agent.bounds import Case
from router.agent.choice import Chosen
from router.agent.metering import Meter
from router.agent.pausing import Pausing
from router.agent.planner import Chooser, advise, unadvised
from router.agent.report import AgentReport, Fallback
from router.agent.settings import ActiveMode, AgentSettings, active_mode
from router.plan import Plan
from serve_app.api.explanation import Explanation
from serve_app.config import AppConfig

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

    from router.agent.agent import MessagesAgent

logger = logging.getLogger("ray.serve")

KEY_VARIABLE = "ANTHROPIC_API_KEY"
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class AgentPart:
    """What the agent has to do with one request."""

    plan: Plan
    """The plan to follow: the deterministic one, or the agent's within bounds."""
    text: str | None = None
    """Why, in the agent's words, where it made the plan."""
    report: AgentReport | None = None
    """For `metrics`; None: the explanation will have it."""
    explanation: Explanation | None = None
    """Where the explanation is still to come."""


class Gate:
    """Lets a bounded number of requests use the agent at a time, and none while its API keeps failing."""

    def __init__(self, settings: AgentSettings) -> None:
        self._most = settings.max_concurrent
        self._pausing = Pausing(settings.pause_after, settings.pause_s)
        self._inside = 0

    def closed(self) -> Fallback | None:
        """Why nobody may use it now; None: it is open."""
        left_s = self._pausing.left_s(asyncio.get_running_loop().time())
        if left_s > 0:
            return Fallback("paused", f"the API kept failing, it is asked again in {left_s:.0f} s")
        if self._inside >= self._most:
            return Fallback("busy", f"{self._most} requests use the agent already")
        return None

    async def through(
        self, ask: Callable[[], Awaitable[AnswerT]], ending: Callable[[AnswerT], Fallback | None]
    ) -> AnswerT | Fallback:
        """The answer of `ask`, or why it was not asked or failed; `ending` tells how an answer ended."""
        if (why := self.closed()) is not None:
            return why
        self._inside += 1
        try:
            answer = await ask()
        except Exception:
            logger.exception("the router agent failed")
            return Fallback("internal_error", "the agent failed")
        finally:
            self._inside -= 1
        self._pausing.note(ending(answer), asyncio.get_running_loop().time())
        return answer


class Advisor:
    """The agent in one mode.

    Args:
        mode: what it does.
        settings: its bounds.
        unavailable: why it can do nothing, for good; None: it can.
        explainer: explains plans (`single_shot`).
        chooser: makes plans (the other modes).
        client: closed with the advisor.
    """

    def __init__(
        self,
        mode: ActiveMode,
        settings: AgentSettings,
        *,
        unavailable: Fallback | None = None,
        explainer: MessagesAgent | None = None,
        chooser: Chooser | None = None,
        client: AsyncAnthropic | None = None,
    ) -> None:
        self._mode = mode
        self._settings = settings
        self._unavailable = unavailable
        self._explainer = explainer
        self._chooser = chooser
        self._client = client
        self._gate = Gate(settings)

    async def part(self, case: Case) -> AgentPart:
        """The agent's part in a request: at once where it explains, after its work where it plans."""
        if self._mode == "single_shot" and not case.request.reasoning:
            return AgentPart(case.plan)
        if (why := self._unavailable or self._gate.closed()) is not None:
            advice = unadvised(case, self._settings, self._mode, why)
        elif self._explainer is not None:
            return AgentPart(case.plan, explanation=self._explanation(self._explainer, case))
        else:
            assert self._chooser is not None
            advice = await advise(_Guarded(self._gate, self._chooser), case, self._settings, self._mode)
        return AgentPart(advice.plan, advice.text, advice.report)

    async def aclose(self) -> None:
        """Close the connections to the API."""
        if self._client is not None:
            await self._client.close()

    def _explanation(self, explainer: MessagesAgent, case: Case) -> Explanation:
        async def tell(meter: Meter) -> str | Fallback:
            return await self._gate.through(
                lambda: explainer.explain(case, meter), lambda told: told if isinstance(told, Fallback) else None
            )

        return Explanation(tell, self._settings)


class _Guarded:
    """A chooser behind the gate."""

    def __init__(self, gate: Gate, chooser: Chooser) -> None:
        self._gate = gate
        self._chooser = chooser

    async def choose(self, case: Case, meter: Meter) -> Chosen:
        def ending(chosen: Chosen) -> Fallback | None:
            return chosen.ending if isinstance(chosen.ending, Fallback) else None

        chosen = await self._gate.through(lambda: self._chooser.choose(case, meter), ending)
        return Chosen(chosen) if isinstance(chosen, Fallback) else chosen


def make_advisor(config: AppConfig, env: Mapping[str, str]) -> Advisor | None:
    """The advisor that the config asks for; None: the agent is off.

    Args:
        config: the agent's settings, and the registry.
        env: read is ANTHROPIC_API_KEY, here and nowhere else.
    """
    settings, key = config.agent, env.get(KEY_VARIABLE)
    mode = active_mode(settings, has_key=bool(key), mock=config.inference_mode == "mock")
    if mode is None:
        return None
    if not key:
        why = Fallback("no_key", f"{KEY_VARIABLE} is not set in the environment of the ingress")
        return Advisor(mode, settings, unavailable=why)
    if mode == "agent_sdk":
        return _sdk_advisor(settings, config, key)
    # Only an ingress with an agent pays for the SDK's import.
    from anthropic import AsyncAnthropic

    from router.agent.agent import MessagesAgent
    from router.agent.messages import Claude

    client = AsyncAnthropic(api_key=key, base_url=settings.base_url, max_retries=0, timeout=settings.timeout_s)
    agent = MessagesAgent(Claude(client, settings), config, settings)
    if mode == "single_shot":
        return Advisor(mode, settings, explainer=agent, client=client)
    return Advisor(mode, settings, chooser=agent, client=client)


def _sdk_advisor(settings: AgentSettings, config: AppConfig, key: str) -> Advisor:
    try:
        from router.agent.sdk import SdkAgent
    except ImportError as error:
        why = Fallback("not_installed", f"mode agent_sdk needs the extra `agent-sdk`: {error}")
        return Advisor("agent_sdk", settings, unavailable=why)
    return Advisor("agent_sdk", settings, chooser=SdkAgent(config, settings, key))
