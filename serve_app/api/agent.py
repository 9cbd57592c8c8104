"""The router agent of one ingress replica: its client, how many requests use it at a time, and what each gets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from router.agent.bounds import Case
from router.agent.leaving import KEY_VARIABLE, Leaving
from router.agent.metering import Meter
from router.agent.planner import Chooser, advise, not_advised
from router.agent.result import API_FAILURES, AgentChoice, AgentFallback, AgentResult
from router.agent.settings import ActiveMode, AgentSettings, active_mode
from router.plan import Plan
from router.request import InferenceRequest
from router.trace_steps import TraceStep
from serve_app.api.explanation import Explanation
from serve_app.api.request_record import RequestRecord
from serve_app.auth.keys import Key
from serve_app.config import AppConfig

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

    from router.agent.messages import MessagesAgent

logger = logging.getLogger("ray.serve")

PAUSE_AFTER: Final = 3
"""Failures of the API in a row after which it is not called for `pause_s`; the first failure after a pause begins the
next. One failure may be chance, and each further request would wait for the same failure."""
AnswerT = TypeVar("AnswerT")


def may_leave(request: InferenceRequest, key: Key | None) -> bool:
    """Return whether anything of a request may go to the agent's API.

    Args:
        request: it can refuse that; one for the stub never goes there.
        key: of whoever sent it, which can refuse that too; None: nobody was asked for one.
    """
    return request.reasoning and not request.mock and (key is None or key.external_reasoning)


class Purse(Protocol):
    """Who pays for the agent's work on one request."""

    async def open_purse(self, usd: float) -> None:
        """Hold what the agent may cost.

        Raises:
            AgentFallback: there is not so much left of a day's limit.
        """

    def pay(self, usd: float) -> None:
        """Count what the agent has cost, and hold no more."""


@dataclass(frozen=True, slots=True)
class NotedPurse:
    """A purse whose payments are noted, for the request log."""

    purse: Purse
    record: RequestRecord

    async def open_purse(self, usd: float) -> None:
        """See `Purse`."""
        await self.purse.open_purse(usd)

    def pay(self, usd: float) -> None:
        """See `Purse`."""
        self.record.agent_usd = (self.record.agent_usd or 0.0) + usd
        self.purse.pay(usd)


class Gate:
    """Lets a bounded number of requests use the agent at a time, and none while its API keeps failing."""

    def __init__(self, settings: AgentSettings) -> None:
        self._max_concurrent = settings.max_concurrent
        self._pause_s = settings.pause_s
        self._inside = 0
        self._failures = 0
        self._paused_until_s = 0.0

    def check(self) -> None:
        """Raise AgentFallback if no request may use the agent now."""
        left_s = self._paused_until_s - asyncio.get_running_loop().time()
        if left_s > 0:
            raise AgentFallback("paused", f"the API kept failing; the next call is in {left_s:.0f} s")
        if self._inside >= self._max_concurrent:
            raise AgentFallback("busy", f"{self._max_concurrent} requests use the agent already")

    async def run(self, ask: Callable[[], Awaitable[AnswerT]]) -> AnswerT:
        """Return the answer of `ask`.

        Raises:
            AgentFallback: it may not be called now, or it failed.
        """
        self.check()
        self._inside += 1
        try:
            answer = await ask()
        except AgentFallback as fallback:
            self._count(failed=fallback.code in API_FAILURES)
            raise
        except Exception as error:
            logger.exception("the router agent failed")
            raise AgentFallback("internal_error", "the agent failed") from error
        finally:
            self._inside -= 1
        self._count(failed=False)
        return answer

    def _count(self, *, failed: bool) -> None:
        self._failures = self._failures + 1 if failed else 0
        if self._failures >= PAUSE_AFTER:
            self._paused_until_s = asyncio.get_running_loop().time() + self._pause_s


class Advisor:
    """The agent in one mode.

    Args:
        mode: what it does.
        settings: its bounds.
        unavailable: why it can never do anything; None: it can.
        explainer: explains plans (`single_shot`).
        chooser: makes plans (the other modes).
        client: closed with the advisor.
        leaving: what it sends out of the cluster; None: nothing.
    """

    def __init__(
        self,
        mode: ActiveMode,
        settings: AgentSettings,
        *,
        unavailable: AgentFallback | None = None,
        explainer: MessagesAgent | None = None,
        chooser: Chooser | None = None,
        client: AsyncAnthropic | None = None,
        leaving: Leaving | None = None,
    ) -> None:
        self.leaving = leaving
        self._mode = mode
        self._settings = settings
        self._unavailable = unavailable
        self._explainer = explainer
        self._chooser = chooser
        self._client = client
        self._gate = Gate(settings)

    async def advise(
        self, case: Case, purse: Purse, key: Key | None = None
    ) -> tuple[Plan, AgentResult | Explanation | None]:
        """Return the plan to follow, and the agent's result or the explanation that is still to come.

        It returns at once if the agent explains, or may not be asked, and after the agent's work if the agent plans.

        Args:
            case: the request, and the deterministic plan.
            purse: pays for it.
            key: of whoever sent it; None: nobody was asked for one.
        """
        if not may_leave(case.request, key):
            return case.plan, None
        if self._unavailable is not None:
            return not_advised(case, self._settings, self._mode, self._unavailable)
        try:
            self._gate.check()
            await purse.open_purse(self._settings.budget_usd)
        except AgentFallback as fallback:
            return not_advised(case, self._settings, self._mode, fallback)
        if self._explainer is not None:
            return case.plan, self._explanation(self._explainer, case, purse)
        assert self._chooser is not None
        chooser = _PaidChooser(self._gate, self._chooser, purse)
        return await advise(chooser, case, self._settings, self._mode)

    async def aclose(self) -> None:
        """Close the connections to the API."""
        if self._client is not None:
            await self._client.close()

    def _explanation(self, explainer: MessagesAgent, case: Case, purse: Purse) -> Explanation:
        async def explain(meter: Meter) -> str:
            try:
                return await self._gate.run(lambda: explainer.explain(case, meter))
            finally:
                purse.pay(meter.cost_usd)

        return Explanation(explain, self._settings)


class _PaidChooser:
    """A chooser behind the gate, whose cost somebody pays, however it ends."""

    def __init__(self, gate: Gate, chooser: Chooser, purse: Purse) -> None:
        self._gate = gate
        self._chooser = chooser
        self._purse = purse

    async def choose(self, case: Case, meter: Meter, steps: list[TraceStep]) -> AgentChoice:
        try:
            return await self._gate.run(lambda: self._chooser.choose(case, meter, steps))
        finally:
            self._purse.pay(meter.cost_usd)


def make_advisor(config: AppConfig, env: Mapping[str, str]) -> Advisor | None:
    """Return the advisor that the config asks for; None: the agent is off.

    Args:
        config: the agent's settings, and the registry.
        env: ANTHROPIC_API_KEY is read from it, here and nowhere else.
    """
    settings, key = config.agent, env.get(KEY_VARIABLE)
    mode = active_mode(settings, has_key=bool(key), mock=config.inference_mode == "mock")
    if mode is None:
        return None
    if not key:
        why = AgentFallback("no_key", f"{KEY_VARIABLE} is not set in the environment of the ingress")
        return Advisor(mode, settings, unavailable=why)
    leaves = Leaving.of(settings, mode, env)
    if mode == "agent_sdk":
        return _sdk_advisor(settings, config, key, leaves)
    # Only an ingress with an agent pays for the SDK's import.
    from anthropic import AsyncAnthropic

    from router.agent.messages import MessagesAgent

    client = AsyncAnthropic(api_key=key, base_url=settings.base_url, max_retries=0, timeout=settings.timeout_s)
    agent = MessagesAgent(client, config, settings)
    if mode == "single_shot":
        return Advisor(mode, settings, explainer=agent, client=client, leaving=leaves)
    return Advisor(mode, settings, chooser=agent, client=client, leaving=leaves)


def _sdk_advisor(settings: AgentSettings, config: AppConfig, key: str, leaves: Leaving) -> Advisor:
    try:
        from router.agent.sdk import SdkAgent
    except ImportError as error:
        why = AgentFallback("not_installed", f"mode agent_sdk needs the extra `agent-sdk`: {error}")
        return Advisor("agent_sdk", settings, unavailable=why)
    return Advisor("agent_sdk", settings, chooser=SdkAgent(config, settings, key), leaving=leaves)
