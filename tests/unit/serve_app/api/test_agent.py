"""The agent of an ingress: when there is one, how many requests use it at a time, and when its API gets a pause."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, get_args

import pytest

from router.agent.bounds import Case
from router.agent.metering import Meter, Usage
from router.agent.result import API_FAILURES, AgentChoice, AgentFallback, AgentResult, FallbackCode
from router.agent.settings import AgentSettings
from router.plan import Plan
from router.trace_steps import TraceStep
from serve_app.api.agent import PAUSE_AFTER, Advisor, Gate, make_advisor
from serve_app.api.explanation import Explanation
from serve_app.auth.keys import make_key, utc_now
from tests.support.agent_cases import KEY, case_of
from tests.support.app_config import app_config

ENV = {"ANTHROPIC_API_KEY": KEY}


class Purse:
    """Pays a number of times."""

    def __init__(self, times: int = 1000) -> None:
        self._times = times
        self.held: list[float] = []
        self.paid: list[float] = []

    async def open_purse(self, usd: float) -> None:
        if len(self.held) == self._times:
            raise AgentFallback("daily_cap", "daily cap reached: nothing is left")
        self.held.append(usd)

    def pay(self, usd: float) -> None:
        self.paid.append(usd)


def advisor(env: dict[str, str] = ENV, mock: bool = False, **agent: Any) -> Advisor | None:
    return make_advisor(app_config(agent=agent, inference_mode="mock" if mock else "real"), env)


async def advised(
    env: dict[str, str], body: dict[str, Any] | None = None, **agent: Any
) -> tuple[Plan, AgentResult | Explanation | None]:
    made = advisor(env, **agent)
    assert made is not None
    try:
        return await made.advise(case_of({"prompt": "Hi"} | (body or {})), Purse())
    finally:
        await made.aclose()


def agent_step(plan: Plan) -> dict[str, Any]:
    (step,) = [step for step in plan.trace if step.step == "agent"]
    return dict(step.result)


# --- whether there is one ---


@pytest.mark.parametrize("env", [{}, {"ANTHROPIC_API_KEY": ""}])
def test_by_default_it_is_off_without_a_key(env: dict[str, str]) -> None:
    assert advisor(env) is None


def test_it_is_off_where_engines_are_stubs_or_the_config_says_so() -> None:
    assert advisor(mock=True) is None
    assert advisor(mode="off") is None


async def test_with_a_key_it_explains() -> None:
    plan, agent = await advised(ENV)
    assert isinstance(agent, Explanation)
    assert "agent" not in [step.step for step in plan.trace]


@pytest.mark.parametrize("mode", ["single_shot", "multi_turn", "agent_sdk"])
async def test_a_request_without_reasoning_asks_nobody_whatever_the_mode(mode: str) -> None:
    plan, agent = await advised(ENV, {"reasoning": False}, mode=mode)
    assert agent is None
    assert "agent" not in [step.step for step in plan.trace]


async def test_a_key_that_refuses_asks_nobody_and_one_that_does_not_does() -> None:
    for allowed in (False, True):
        key = make_key("alice", "infer", utc_now(), external_reasoning=allowed).key
        chooser = Scripted(AgentChoice(tier="eco", reason="Easy."))
        _, agent = await Advisor("multi_turn", AgentSettings(), chooser=chooser).advise(case_of("Hi"), Purse(), key)
        assert (agent is not None) == (chooser.asked == 1) == allowed


# --- what leaves the cluster ---


@pytest.mark.parametrize(
    ("env", "agent", "leaves"),
    [
        (ENV, {}, True),
        (ENV, {"mode": "multi_turn"}, True),
        (ENV, {"mode": "off"}, None),
        ({}, {}, None),
        ({}, {"mode": "multi_turn"}, False),
    ],
)
def test_something_leaves_only_with_a_key_and_an_agent(
    env: dict[str, str], agent: dict[str, Any], leaves: bool | None
) -> None:
    made = advisor(env, **agent)
    assert (None if made is None else made.leaving is not None) == leaves


async def test_an_agent_that_is_not_installed_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "claude_agent_sdk", None)
    monkeypatch.delitem(sys.modules, "router.agent.sdk", raising=False)
    made = advisor(mode="agent_sdk")
    assert made is not None
    assert made.leaving is None


@pytest.mark.parametrize("mode", ["single_shot", "multi_turn", "agent_sdk"])
async def test_a_named_mode_without_a_key_says_so(mode: str) -> None:
    plan, agent = await advised({}, mode=mode)
    assert agent_step(plan)["fallback"] == "no_key"
    assert isinstance(agent, AgentResult)
    assert agent.metrics()["fallback"] == "no_key"
    assert KEY not in str((plan, agent))


async def test_an_agent_sdk_that_is_not_installed_is_a_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "claude_agent_sdk", None)
    monkeypatch.delitem(sys.modules, "router.agent.sdk", raising=False)
    plan, _ = await advised(ENV, mode="agent_sdk")
    assert agent_step(plan)["fallback"] == "not_installed"
    assert "agent-sdk" in agent_step(plan)["detail"]


# --- the gate ---


async def answer(gate: Gate, code: FallbackCode | None = None, seconds: float = 0.0) -> str:
    """Use the agent; it answers, or fails with that code, after so many seconds."""

    async def ask() -> str:
        await asyncio.sleep(seconds)
        if code is not None:
            raise AgentFallback(code, "no")
        return "Because."

    try:
        return await gate.run(ask)
    except AgentFallback as fallback:
        return fallback.code


async def test_at_most_max_concurrent_requests_use_the_agent_at_a_time() -> None:
    gate = Gate(AgentSettings(max_concurrent=2))
    first = [asyncio.ensure_future(answer(gate, seconds=5)) for _ in range(2)]
    await asyncio.sleep(1)
    assert await answer(gate) == "busy"
    assert await asyncio.gather(*first) == ["Because."] * 2
    assert await answer(gate) == "Because."


async def test_a_place_is_free_again_after_a_failure_and_after_a_cancellation() -> None:
    gate = Gate(AgentSettings(max_concurrent=1))
    await answer(gate, "overloaded")
    under_way = asyncio.ensure_future(answer(gate, seconds=100))
    await asyncio.sleep(1)
    under_way.cancel()
    await asyncio.gather(under_way, return_exceptions=True)
    assert await answer(gate) == "Because."


async def test_an_api_that_keeps_failing_is_not_called_for_a_while() -> None:
    gate = Gate(AgentSettings(pause_s=30))
    assert [await answer(gate, "overloaded") for _ in range(PAUSE_AFTER)] == ["overloaded"] * PAUSE_AFTER
    with pytest.raises(AgentFallback, match="30 s") as caught:
        gate.check()
    assert caught.value.code == "paused"
    await asyncio.sleep(29)
    assert await answer(gate) == "paused"
    await asyncio.sleep(1)
    assert await answer(gate) == "Because."


async def test_the_first_failure_after_a_pause_begins_the_next() -> None:
    gate = Gate(AgentSettings(pause_s=30))
    for _ in range(PAUSE_AFTER):
        await answer(gate, "timeout")
    await asyncio.sleep(40)
    assert await answer(gate, "timeout") == "timeout"
    assert await answer(gate) == "paused"


async def test_a_success_ends_the_row_of_failures() -> None:
    gate = Gate(AgentSettings(pause_s=30))
    for code in (*["timeout"] * (PAUSE_AFTER - 1), None, *["timeout"] * (PAUSE_AFTER - 1)):
        await answer(gate, code)  # type: ignore[arg-type]
    assert await answer(gate) == "Because."


async def test_no_pause_with_pause_s_0() -> None:
    gate = Gate(AgentSettings(pause_s=0))
    for _ in range(2 * PAUSE_AFTER):
        assert await answer(gate, "timeout") == "timeout"


@pytest.mark.parametrize("code", sorted(set(get_args(FallbackCode)) - API_FAILURES))
async def test_a_failure_of_one_request_begins_no_pause(code: FallbackCode) -> None:
    gate = Gate(AgentSettings(pause_s=30))
    for _ in range(PAUSE_AFTER):
        await answer(gate, code)
    assert await answer(gate) == "Because."


async def test_a_bug_in_the_agent_is_a_fallback_too() -> None:
    async def broken() -> str:
        raise ZeroDivisionError

    with pytest.raises(AgentFallback) as caught:
        await Gate(AgentSettings()).run(broken)
    assert caught.value.code == "internal_error"


# --- plans ---


class Scripted:
    """An agent that takes a second."""

    def __init__(self, *endings: AgentChoice | None) -> None:
        self._endings = list(endings)
        self.asked = 0

    async def choose(self, case: Case, meter: Meter, steps: list[TraceStep]) -> AgentChoice:
        self.asked += 1
        meter.begin()
        meter.note(Usage(output_tokens=7))
        await asyncio.sleep(1)
        if (choice := self._endings.pop(0)) is None:
            raise AgentFallback("overloaded", "no")
        return choice


async def test_the_plan_is_the_agents_or_the_deterministic_one_with_the_reason() -> None:
    chooser = Scripted(AgentChoice(tier="eco", reason="Easy.", k=2), *[None] * PAUSE_AFTER)
    made = Advisor("multi_turn", AgentSettings(), chooser=chooser)
    case = case_of("What is the capital of France?")
    advised = [await made.advise(case, Purse()) for _ in range(PAUSE_AFTER + 2)]
    plans, results = [plan for plan, _ in advised], [result for _, result in advised]
    assert all(isinstance(result, AgentResult) for result in results)
    assert plans[0].spec.k == 2
    assert [result.text for result in results if isinstance(result, AgentResult)] == ["Easy.", *[None] * 4]
    assert [agent_step(plan).get("fallback") for plan in plans] == [None, *["overloaded"] * PAUSE_AFTER, "paused"]
    used = [result.usage.output_tokens for result in results if isinstance(result, AgentResult)]
    assert used == [7, *[7] * PAUSE_AFTER, 0]


async def test_each_plan_is_paid_for_also_one_that_failed_or_was_left() -> None:
    purse = Purse()
    chooser = Scripted(AgentChoice(tier="eco", reason="Easy.", k=2), None, None)
    made = Advisor("multi_turn", AgentSettings(), chooser=chooser)
    case = case_of("What is the capital of France?")
    for _ in range(2):
        await made.advise(case, purse)
    left = asyncio.ensure_future(made.advise(case, purse))
    await asyncio.sleep(0.5)
    left.cancel()
    await asyncio.wait({left})
    assert purse.held == [AgentSettings().budget_usd] * 3
    assert purse.paid == [pytest.approx(7 * 0.5 / 1e6)] * 3


async def test_without_money_the_deterministic_plan_stands_and_says_why() -> None:
    purse = Purse(times=0)
    made = Advisor("multi_turn", AgentSettings(), chooser=Scripted())
    plan, result = await made.advise(case_of("What is the capital of France?"), purse)
    step = agent_step(plan)
    assert (step["fallback"], step["detail"]) == ("daily_cap", "daily cap reached: nothing is left")
    assert isinstance(result, AgentResult)
    assert (result.cost_usd, result.text, purse.paid) == (0, None, [])


async def test_what_keeps_the_agent_from_being_asked_holds_no_money() -> None:
    purse = Purse()
    made = advisor({}, mode="multi_turn")
    assert made is not None
    await made.advise(case_of("Hi"), purse)
    assert (purse.held, purse.paid) == ([], [])
