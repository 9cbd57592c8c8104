"""The agent of an ingress: when there is one, how many use it at a time, and when it leaves an API alone."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from router.agent.bounds import Case
from router.agent.choice import AgentChoice, Chosen
from router.agent.metering import Meter, Usage
from router.agent.report import Fallback
from router.agent.settings import AgentSettings
from serve_app.api.advisor import Advisor, AgentPart, Gate, make_advisor
from tests.support.agent_cases import KEY, case_of
from tests.support.app_config import app_config

ENV = {"ANTHROPIC_API_KEY": KEY}
DOWN = Fallback("overloaded", "no")


def advisor(env: dict[str, str] = ENV, mock: bool = False, **agent: Any) -> Advisor | None:
    return make_advisor(app_config(agent=agent, inference_mode="mock" if mock else "real"), env)


async def part(env: dict[str, str], body: dict[str, Any] | None = None, **agent: Any) -> AgentPart:
    made = advisor(env, **agent)
    assert made is not None
    try:
        return await made.part(case_of({"prompt": "Hi"} | (body or {})))
    finally:
        await made.aclose()


def agent_step(made: AgentPart) -> dict[str, Any]:
    (step,) = [step for step in made.plan.trace if step.step == "agent"]
    return dict(step.result)


# --- whether there is one ---


@pytest.mark.parametrize("env", [{}, {"ANTHROPIC_API_KEY": ""}])
def test_by_default_it_is_off_without_a_key(env: dict[str, str]) -> None:
    assert advisor(env) is None


def test_it_is_off_where_engines_are_stubs_or_the_config_says_so() -> None:
    assert advisor(mock=True) is None
    assert advisor(mode="off") is None


async def test_with_a_key_it_explains() -> None:
    made = await part(ENV)
    assert made.explanation is not None
    assert made.report is None
    assert "agent" not in [step.step for step in made.plan.trace]


async def test_who_wants_no_reasoning_gets_no_explanation() -> None:
    made = await part(ENV, {"reasoning": False})
    assert (made.explanation, made.report, made.text) == (None, None, None)


@pytest.mark.parametrize("mode", ["single_shot", "multi_turn", "agent_sdk"])
async def test_a_mode_that_was_named_tells_that_the_key_is_missing(mode: str) -> None:
    made = await part({}, mode=mode)
    assert agent_step(made)["fallback"] == "no_key"
    assert made.explanation is None
    assert made.report is not None
    assert made.report.metrics()["fallback"] == "no_key"
    assert KEY not in str(made)


async def test_the_agent_sdk_that_is_not_installed_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "claude_agent_sdk", None)
    monkeypatch.delitem(sys.modules, "router.agent.sdk", raising=False)
    made = await part(ENV, mode="agent_sdk")
    assert agent_step(made)["fallback"] == "not_installed"
    assert "agent-sdk" in agent_step(made)["detail"]


# --- the gate ---


async def slow(seconds: float, ending: Fallback | None = None) -> Fallback | str:
    await asyncio.sleep(seconds)
    return ending or "Because."


def ending(answer: Fallback | str) -> Fallback | None:
    return answer if isinstance(answer, Fallback) else None


async def test_no_more_than_so_many_use_it_at_a_time() -> None:
    gate = Gate(AgentSettings(max_concurrent=2))
    first = [asyncio.ensure_future(gate.through(lambda: slow(5), ending)) for _ in range(2)]
    await asyncio.sleep(1)
    third = await gate.through(lambda: slow(5), ending)
    assert isinstance(third, Fallback)
    assert third.code == "busy"
    assert await asyncio.gather(*first) == ["Because."] * 2
    assert gate.closed() is None


async def test_a_place_is_free_again_after_a_failure_and_after_a_cancellation() -> None:
    gate = Gate(AgentSettings(max_concurrent=1, pause_after=9))
    await gate.through(lambda: slow(0, DOWN), ending)
    under_way = asyncio.ensure_future(gate.through(lambda: slow(100), ending))
    await asyncio.sleep(1)
    under_way.cancel()
    await asyncio.gather(under_way, return_exceptions=True)
    assert await gate.through(lambda: slow(0), ending) == "Because."


async def test_an_api_that_keeps_failing_is_left_alone_for_a_while() -> None:
    gate = Gate(AgentSettings(pause_after=2, pause_s=30))
    for _ in range(2):
        assert await gate.through(lambda: slow(0, DOWN), ending) == DOWN
    paused = await gate.through(lambda: slow(0), ending)
    assert isinstance(paused, Fallback)
    assert paused.code == "paused"
    assert "30 s" in paused.detail
    await asyncio.sleep(31)
    assert await gate.through(lambda: slow(0), ending) == "Because."


async def test_a_bug_in_the_agent_is_a_fallback_too() -> None:
    async def broken() -> str:
        raise ZeroDivisionError

    answer = await Gate(AgentSettings()).through(broken, ending)
    assert isinstance(answer, Fallback)
    assert answer.code == "internal_error"


# --- plans ---


class Scripted:
    """An agent that takes its time."""

    def __init__(self, *endings: AgentChoice | Fallback, seconds: float = 1.0) -> None:
        self._endings = list(endings)
        self._seconds = seconds

    async def choose(self, case: Case, meter: Meter) -> Chosen:
        meter.begin()
        meter.note(Usage(output_tokens=7))
        await asyncio.sleep(self._seconds)
        return Chosen(self._endings.pop(0))


async def test_a_plan_is_the_agents_or_the_deterministic_one_with_the_reason() -> None:
    chooser = Scripted(AgentChoice(tier="eco", reason="Easy.", k=2), DOWN, DOWN)
    made = Advisor("multi_turn", AgentSettings(pause_after=2), chooser=chooser)
    case = case_of("What is the capital of France?")
    first, second, third, fourth = [await made.part(case) for _ in range(4)]
    assert (first.text, first.plan.spec.k) == ("Easy.", 2)
    assert (second.text, agent_step(second)["fallback"]) == (None, "overloaded")
    assert (third.text, agent_step(third)["fallback"]) == (None, "overloaded")
    assert (fourth.text, agent_step(fourth)["fallback"]) == (None, "paused")
    assert [made.report.usage.output_tokens for made in (first, second, fourth) if made.report] == [7, 7, 0]
