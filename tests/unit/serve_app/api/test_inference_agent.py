"""The agent's part in a stream: where its words come, that it delays nothing, and that it ends with the request."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import pytest

from router.agent.bounds import Case
from router.agent.metering import Meter, Usage
from router.agent.planner import not_advised
from router.agent.result import AgentFallback, AgentResult
from router.agent.settings import AgentSettings
from router.observation import Observation, TierState
from router.plan import Plan, plan
from router.request import InferenceRequest
from serve_app.api.errors import Failure
from serve_app.api.explanation import END_WAIT_S, Explanation
from serve_app.api.inference import InferenceStream
from serve_app.api.stream_response import StreamResponse
from serve_app.engine.interface import Admitted, Finished, SpecStats, Token
from serve_app.engine.stream_items import StreamItem
from serve_app.transport.resuming import ResumingStream
from serve_app.transport.stream import LocalStream
from tests.support.app_config import FixedPool, app_config
from tests.support.http_client import Client
from tests.support.streams import Script, Wait, batch, collect, sse_events

ADMITTED = Admitted()
TOKEN = batch(Token("Pa", 1, None, False))
FINISHED = Finished("stop", 4, 3, queue_ms=0.0, spec=SpecStats(), busy_s=0.5)
SETTINGS = AgentSettings()
WARM, COLD = TierState(running=1), TierState(pending=1, cold_start_s=30)
Events = list[tuple[str, dict[str, Any]]]


class Agent:
    """An explanation that takes its time, and what became of it."""

    def __init__(self, seconds: float, ending: str | AgentFallback = "Because.") -> None:
        self._seconds = seconds
        self._ending = ending
        self.began_s: float | None = None
        self.cancelled = False

    async def explain(self, meter: Meter) -> str:
        self.began_s = asyncio.get_running_loop().time()
        meter.begin()
        meter.note(Usage(input_tokens=100, output_tokens=10))
        try:
            await asyncio.sleep(self._seconds)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if isinstance(self._ending, AgentFallback):
            raise self._ending
        return self._ending


class Streamed:
    """A request with an explanation beside it."""

    def __init__(
        self, items: Sequence[StreamItem | Wait | Exception], agent: Agent, state: TierState = WARM, **fields: Any
    ) -> None:
        self.script: Script[StreamItem] = Script(items)
        self.agent = agent
        self.pool = FixedPool({"eco": state})
        self.config = app_config()
        self.request = InferenceRequest.model_validate({"prompt": "Hello", "mode": "manual", "power": 10} | fields)
        self.plan = plan(self.request, self.pool.observation, self.config)

    def stream(self, advised: tuple[Plan, AgentResult | None] | None = None) -> InferenceStream:
        made, agent = advised or (self.plan, Explanation(self.agent.explain, SETTINGS))
        return InferenceStream(
            "r1",
            self.request,
            made,
            ResumingStream(
                "eco", lambda _: LocalStream(self.script.stream()), math.inf, asyncio.get_running_loop().time
            ),
            self.config,
            self.pool,
            asyncio.get_running_loop().time(),
            agent=agent,
        )

    async def events(self, advised: tuple[Plan, AgentResult | None] | None = None) -> Events:
        stream = self.stream(advised)
        await stream.admit()
        return sse_events(await collect(stream.events()))


def kinds(events: Events) -> list[str]:
    return [kind for kind, _ in events if kind != "ping"]


def only(events: Events, wanted: str) -> list[dict[str, Any]]:
    return [data for kind, data in events if kind == wanted]


async def test_the_explanation_comes_between_the_tokens_as_soon_as_it_is_ready() -> None:
    events = await Streamed([ADMITTED, TOKEN, Wait(2), TOKEN, Wait(2), TOKEN, FINISHED], Agent(1)).events()
    assert kinds(events) == [
        *["config", *["trace"] * 4],
        *["token", "trace", "reasoning", "token", "token", "metrics", "done"],
    ]
    assert only(events, "reasoning") == [{"text": "Because.", "source": "claude"}]
    assert only(events, "trace")[-1]["step"] == "agent"
    (metrics,) = only(events, "metrics")
    assert metrics["agent"]["input_tokens"] == 100
    assert metrics["agent"]["cost_usd"] > 0
    assert "fallback" not in metrics["agent"]


async def test_on_a_warm_tier_it_begins_with_the_piece_after_the_first_token() -> None:
    case = Streamed([ADMITTED, Wait(3), TOKEN, Wait(2), FINISHED], Agent(1))
    loop = asyncio.get_running_loop()
    began = loop.time()
    first: list[float] = []
    async for piece in case.stream().events():
        if "token" in kinds(sse_events(piece)) and not first:
            first.append(loop.time())
            assert case.agent.began_s is None
    # The first ping after it.
    assert case.agent.began_s == pytest.approx(began + 3.4)


async def test_on_a_cold_tier_the_explanation_comes_while_the_tier_starts() -> None:
    events = await Streamed([Wait(10), ADMITTED, TOKEN, FINISHED], Agent(1), COLD).events()
    assert kinds(events).index("reasoning") < kinds(events).index("token")
    assert only(events, "reasoning")[0]["source"] == "claude"


async def test_an_answer_that_ends_first_waits_a_moment_and_then_ends_without_an_explanation() -> None:
    case = Streamed([ADMITTED, TOKEN, FINISHED], Agent(100))
    loop = asyncio.get_running_loop()
    began = loop.time()
    events = await case.events()
    assert loop.time() - began == pytest.approx(END_WAIT_S)
    assert kinds(events)[5:] == ["token", "trace", "reasoning", "metrics", "done"]
    (reasoning,) = only(events, "reasoning")
    assert (reasoning["source"], reasoning["text"]) == ("heuristic", case.plan.explain())
    assert only(events, "trace")[-1]["result"]["fallback"] == "late"
    (metrics,) = only(events, "metrics")
    assert metrics["agent"]["fallback"] == "late"
    assert metrics["total_ms"] == pytest.approx(0, abs=1)
    assert case.agent.cancelled


async def test_a_fallback_leaves_the_routers_own_words_and_puts_the_reason_into_the_trace() -> None:
    case = Streamed([ADMITTED, TOKEN, Wait(1), FINISHED], Agent(0, AgentFallback("rate_limited", "HTTP 429")))
    events = await case.events()
    assert only(events, "reasoning") == [{"text": case.plan.explain(), "source": "heuristic"}]
    assert only(events, "trace")[-1]["result"] == {
        "mode": "single_shot",
        "model": "claude-haiku-5-5",
        "calls": 1,
        "tools": [],
        "fallback": "rate_limited",
        "detail": "HTTP 429",
        "tier": "eco",
    }


async def test_an_answer_without_tokens_is_explained_too() -> None:
    events = await Streamed([ADMITTED, Wait(1), FINISHED], Agent(0.2)).events()
    assert kinds(events)[5:] == ["trace", "reasoning", "metrics", "done"]


@pytest.mark.parametrize("ending", [[Failure("engine_failed", "no", 500, True)], [RuntimeError("a bug")], []])
async def test_a_stream_that_fails_cancels_its_explanation(ending: list[Any]) -> None:
    case = Streamed([ADMITTED, TOKEN, Wait(1), *ending], Agent(100))
    events = await case.events()
    assert kinds(events)[-1] == "error"
    assert case.agent.cancelled
    assert len(asyncio.all_tasks()) == 1


async def test_a_client_that_leaves_cancels_the_explanation() -> None:
    case, client = Streamed([ADMITTED, TOKEN, Wait(10_000)], Agent(1000)), Client()
    stream = case.stream()
    await stream.admit()
    answering = asyncio.ensure_future(client.read(StreamResponse(stream.events(), 200, {}, stream.aclose)))
    await asyncio.sleep(7)
    assert case.agent.began_s is not None
    client.leave()
    await answering
    assert case.agent.cancelled
    assert case.script.closed


async def test_a_refusal_before_the_response_leaves_nothing_behind() -> None:
    case = Streamed([Failure("prompt_too_long", "3000 tokens", 400, False)], Agent(1))
    with pytest.raises(Exception, match="3000 tokens"):
        await case.stream().admit()
    assert case.agent.began_s is None
    assert case.script.closed


# --- an agent that made the plan ---


async def test_the_reason_of_an_agent_that_made_the_plan_comes_at_once() -> None:
    case = Streamed([ADMITTED, TOKEN, FINISHED], Agent(1))
    result = AgentResult("multi_turn", "m", Usage(1, 2, 3, 4), 0.5, 2, 1234.5678, ("check_gpu_pool",), "It is easy.")
    events = await case.events((case.plan, result))
    assert kinds(events)[5:] == ["reasoning", "token", "metrics", "done"]
    assert only(events, "reasoning") == [{"text": "It is easy.", "source": "agent"}]
    assert only(events, "metrics")[0]["agent"] == {
        "mode": "multi_turn",
        "model": "m",
        "calls": 2,
        "input_tokens": 1,
        "output_tokens": 2,
        "cache_read_tokens": 3,
        "cache_write_tokens": 4,
        "cost_usd": 0.5,
        "duration_ms": 1234.568,
    }


async def test_a_plan_without_the_agent_has_the_routers_own_words() -> None:
    case = Streamed([ADMITTED, TOKEN, FINISHED], Agent(1))
    whole = Case(case.request, case.plan, case.config, Observation())
    why = AgentFallback("busy", "32 requests use the agent already")
    events = await case.events(not_advised(whole, SETTINGS, "multi_turn", why))
    assert only(events, "reasoning")[0]["source"] == "heuristic"
    assert [data["step"] for data in only(events, "trace")] == [
        "classify_prompt",
        "check_gpu_pool",
        "agent",
        "build_config",
        "decision",
    ]
    assert only(events, "metrics")[0]["agent"]["fallback"] == "busy"


async def test_without_an_agent_the_metrics_have_no_agent_part() -> None:
    case = Streamed([ADMITTED, TOKEN, FINISHED], Agent(1))
    events = await case.events((case.plan, None))
    assert "agent" not in only(events, "metrics")[0]
    assert only(events, "reasoning")[0]["source"] == "heuristic"
