"""One line of JSON for each request that has ended, without its prompt."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest

from router.agent.bounds import Case
from router.agent.metering import Meter, Usage
from router.agent.result import AgentChoice
from router.agent.settings import AgentSettings
from router.observation import TierState
from router.trace_steps import TraceStep
from serve_app.api.agent import Advisor
from serve_app.api.request_log import RequestLog, line_of
from serve_app.api.request_record import CLIENT_LEFT, RequestRecord
from tests.support.app_config import app_config
from tests.support.local_ingress import LocalIngress
from tests.support.real_loops import REAL_LOOPS

SECRET = "xylophone"
SLOW: dict[str, Any] = {"messages": [{"role": "user", "content": "x stub:tokens=99 stub:rate=50"}]}
MESSAGES = [{"role": "user", "content": f"Is a {SECRET} hard? stub:tokens=3"}]


def lines(folder: Path) -> list[dict[str, Any]]:
    (path,) = folder.glob("requests_*.jsonl")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def ingress(monkeypatch: pytest.MonkeyPatch) -> LocalIngress:
    return LocalIngress(app_config(), monkeypatch)


async def test_an_answer_is_a_line_with_who_gave_it_and_what_it_took(ingress: LocalIngress) -> None:
    body = {"messages": MESSAGES, "mode": "manual", "power": 10}
    response = await ingress.post("/api/inference", body, {"x-request-id": "r-17"})
    assert response.status_code == 200
    (line,) = lines(ingress.log_folder)
    assert datetime.fromisoformat(line["time"]).tzinfo is not None
    known = {name: line[name] for name in ("request_id", "route", "outcome", "mode", "power", "tier", "entry")}
    assert known == {
        **{"request_id": "r-17", "route": "/api/inference", "outcome": "ok", "mode": "manual", "power": 10},
        **{"tier": "eco", "entry": "small-ngram"},
    }
    assert (line["completion_tokens"], line["finish_reason"], line["energy_source"]) == (3, "stop", "modelled")
    assert 0 <= line["ttft_ms"] <= line["total_ms"]
    assert line["energy_wh"] > 0
    assert line["cost_usd"] > 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/responses", {"input": MESSAGES[0]["content"]}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 9}),
    ],
)
async def test_each_route_has_its_line(path: str, body: dict[str, Any], ingress: LocalIngress) -> None:
    response = await ingress.post(path, {"model": "eco"} | body)
    assert response.status_code == 200
    (line,) = lines(ingress.log_folder)
    assert (line["route"], line["outcome"], line["tier"], line["mode"]) == (path, "ok", "eco", "manual")


async def test_a_refused_request_has_a_line_with_the_code_and_no_tier(ingress: LocalIngress) -> None:
    assert (await ingress.post("/api/inference", {"prompt": SECRET, "colour": 1})).status_code == 422
    (line,) = lines(ingress.log_folder)
    assert (line["tier"], line["category"], line["completion_tokens"]) == (None, None, None)
    assert line["outcome"] not in ("ok", None)


async def test_no_prompt_is_in_the_log(ingress: LocalIngress) -> None:
    await ingress.post("/api/inference", {"messages": MESSAGES})
    await ingress.post("/api/inference", {"prompt": SECRET, SECRET: 1})
    await ingress.post("/v1/chat/completions", {"model": "auto", "messages": MESSAGES})
    assert SECRET not in json.dumps(lines(ingress.log_folder))


async def test_prompts_are_in_the_log_where_the_operator_asks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    ingress = LocalIngress(app_config(ingress={"log_prompts": True}), monkeypatch)
    await ingress.post("/api/inference", {"messages": MESSAGES})
    await ingress.post("/v1/chat/completions", {"model": "auto", "messages": MESSAGES})
    assert [line["prompt"] for line in lines(ingress.log_folder)] == [{"messages": MESSAGES}] * 2


async def test_several_answers_are_counted_together(ingress: LocalIngress) -> None:
    record = RequestRecord("/v1/chat/completions", code="ok")
    took: dict[str, Any] = {"busy_s": 1.0, "water_l": 0.0, "co2_g": 0.0, "cost_usd": 0.0}
    took["legs"] = [{"tier": "eco"}]
    record.finished(took | {"energy": {"wh": 0.1, "source": "modelled"}}, completion_tokens=24)
    assert line_of(record, app_config())["completion_tokens"] == 24


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/inference"])
async def test_an_answer_that_failed_has_the_tokens_that_it_took(path: str, ingress: LocalIngress) -> None:
    messages = [{"role": "user", "content": "Hi stub:fail=30"}]
    body = {"model": "eco", "stream": True, "max_tokens": 90} if path.startswith("/v1") else {"max_tokens": 90}
    await ingress.post(path, body | {"messages": messages})
    (line,) = lines(ingress.log_folder)
    assert line["outcome"] != "ok"
    assert line["prompt_tokens"] > 0
    assert line["completion_tokens"] == 30


async def test_an_answer_that_failed_has_what_was_delivered(ingress: LocalIngress) -> None:
    body = {"prompt": "x stub:fail=4", "mode": "manual", "power": 10}
    await ingress.post("/api/inference", body)
    (line,) = lines(ingress.log_folder)
    assert (line["outcome"], line["completion_tokens"], line["finish_reason"]) == ("engine_failed", 4, None)
    assert 0 <= line["ttft_ms"] <= line["total_ms"]
    assert line["busy_s"] >= 0
    assert (line["prompt_tokens"], line["counted"]) == (4, "estimated")
    (leg,) = line["legs"]
    assert (leg["tier"], leg["completion_tokens"], leg["ended_by"]) == ("eco", 4, "engine_failed")
    assert (leg["busy_s"], leg["energy_wh"], leg["cost_usd"]) == (line["busy_s"], line["energy_wh"], line["cost_usd"])


async def left_after(seconds: float, ingress: LocalIngress, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The line of a request whose client leaves."""
    asking = asyncio.ensure_future(ingress.post(path, body))
    await asyncio.sleep(seconds)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    (line,) = lines(ingress.log_folder)
    return line


@REAL_LOOPS
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/inference", {"prompt": "x stub:tokens=99 stub:rate=50", "mode": "manual", "power": 10}),
        ("/v1/chat/completions", {"model": "eco", "stream": True, "max_tokens": 99} | SLOW),
        ("/v1/chat/completions", {"model": "eco", "max_tokens": 99} | SLOW),
        ("/v1/messages", {"model": "eco", "stream": True, "max_tokens": 99} | SLOW),
        ("/v1/responses", {"model": "eco", "stream": True, "input": SLOW["messages"][0]["content"]}),
    ],
)
async def test_a_client_that_left_has_taken_what_the_engine_did_until_then(
    path: str, body: dict[str, Any], ingress: LocalIngress
) -> None:
    line = await left_after(0.8, ingress, path, body)
    assert (line["outcome"], line["tier"], line["counted"]) == ("client_left", "eco", "estimated")
    assert line["prompt_tokens"] == 5
    # A token each 0.02 s, told each 0.25 s at least; alone on its engine it has had all of the time.
    assert line["completion_tokens"] >= 5
    assert 0.02 * (line["completion_tokens"] - 1) <= line["busy_s"] <= line["total_ms"] / 1000
    hours, eco = line["busy_s"] / 3600, ingress.config.tiers["eco"]
    assert line["energy_wh"] == pytest.approx(eco.active_watts * hours)
    assert line["cost_usd"] == pytest.approx(eco.price_usd_per_hour * hours)
    assert line["co2_g"] > 0
    assert line["water_l"] > 0
    assert [leg["completion_tokens"] for leg in line["legs"]] == [line["completion_tokens"]]


@REAL_LOOPS
async def test_a_client_that_left_before_the_first_token_has_taken_its_time_on_the_engine(
    ingress: LocalIngress,
) -> None:
    body = {"prompt": "x stub:first=60", "mode": "manual", "power": 10}
    ingress.pool.set("eco", TierState(running=2, engine_running=8, queue_wait_ms=200))
    line = await left_after(0.8, ingress, "/api/inference", body)
    assert (line["completion_tokens"], line["ttft_ms"], line["counted"]) == (0, None, "estimated")
    # One of four on its engine, after the wait.
    assert 0 < line["busy_s"] == pytest.approx((line["total_ms"] / 1000 - 0.2) / 4, abs=0.05)


async def test_what_the_stub_in_the_ingress_does_is_no_tiers(monkeypatch: pytest.MonkeyPatch) -> None:
    ingress = LocalIngress(app_config(allow_mock=True), monkeypatch)
    await ingress.post("/api/inference", {"prompt": "x", "mock": True, "max_tokens": 3})
    (line,) = lines(ingress.log_folder)
    assert (line["legs"], line["busy_s"], line["counted"]) == ([], None, None)


@REAL_LOOPS
async def test_an_answer_that_climbed_has_each_part_at_its_tier_and_the_sums_are_theirs(
    ingress: LocalIngress,
) -> None:
    body = {
        "prompt": "Say something. stub:loop=0 stub:rate=1000",
        "escalate": "auto",
        "mode": "manual",
        "power": 10,
        "max_tokens": 300,
    }
    await ingress.post("/api/inference", body)
    (line,) = lines(ingress.log_folder)
    assert [leg["tier"] for leg in line["legs"]] == ["eco", "balanced"]
    assert (line["tier"], line["counted"]) == ("eco", "whole")
    for name in ("completion_tokens", "busy_s", "energy_wh", "cost_usd"):
        assert sum(leg[name] for leg in line["legs"]) == pytest.approx(line[name], rel=1e-3, abs=1e-5), name


async def test_what_the_agent_cost_is_there_also_where_the_client_left(ingress: LocalIngress) -> None:
    class Explainer:
        async def explain(self, case: Case, meter: Meter) -> str:
            meter.begin()
            meter.note(Usage(output_tokens=1000))
            await asyncio.sleep(60)
            return "Because."

    ingress.ingress._advisor = Advisor("single_shot", AgentSettings(), explainer=cast(Any, Explainer()))
    body = {"prompt": "x stub:tokens=99 stub:rate=10", "mode": "manual", "power": 10}
    asking = asyncio.ensure_future(ingress.post("/api/inference", body))
    await asyncio.sleep(2)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await ingress.post("/api/inference", body | {"reasoning": False, "prompt": "x"})
    left, refused = lines(ingress.log_folder)
    assert (left["agent_usd"], refused["agent_usd"]) == (pytest.approx(1000 * 0.5 / 1e6), None)


async def test_a_client_that_left_while_the_agent_planned_has_paid_it(ingress: LocalIngress) -> None:
    class Planner:
        async def choose(self, case: Case, meter: Meter, steps: list[TraceStep]) -> AgentChoice:
            meter.begin()
            meter.note(Usage(output_tokens=1000))
            await asyncio.sleep(60)
            return AgentChoice(tier="eco", reason="Easy.")

    ingress.ingress._advisor = Advisor("multi_turn", AgentSettings(), chooser=Planner())
    line = await left_after(2, ingress, "/api/inference", {"prompt": "What is the capital of France?"})
    assert (line["outcome"], line["tier"], line["legs"], line["counted"]) == ("client_left", None, [], None)
    assert line["agent_usd"] == pytest.approx(1000 * 0.5 / 1e6)


async def test_the_goal_is_there(ingress: LocalIngress) -> None:
    await ingress.post("/api/inference", {"prompt": "x stub:tokens=1", "goal": "greener"})
    await ingress.post("/api/inference", {"prompt": "x stub:tokens=1"})
    assert [line["goal"] for line in lines(ingress.log_folder)] == ["greener", None]


def test_a_client_that_left_has_a_line(tmp_path: Path) -> None:
    log = RequestLog(tmp_path, "r1", app_config(), lambda: datetime.fromisoformat("2026-11-30T05:00:00.123456+00:00"))
    log.ended(RequestRecord("/api/inference", arrived_s=10.0, code=CLIENT_LEFT, ended_s=12.5, request_id="a"))
    (line,) = lines(tmp_path)
    assert (line["outcome"], line["total_ms"], line["time"]) == ("client_left", 2500.0, "2026-11-30T05:00:00.123+00:00")
