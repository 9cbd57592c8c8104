"""One line of JSON for each request that has ended, without its prompt."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from serve_app.api.request_log import RequestLog, line_of
from serve_app.api.request_record import CLIENT_LEFT, RequestRecord
from tests.support.app_config import app_config
from tests.support.local_ingress import LocalIngress

SECRET = "xylophone"
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
    record.finished({"completion_tokens": 8, "energy": {"wh": 0.1, "source": "modelled"}}, completion_tokens=24)
    assert line_of(record)["completion_tokens"] == 24


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


def test_a_client_that_left_has_a_line(tmp_path: Path) -> None:
    log = RequestLog(tmp_path, "r1", lambda: datetime.fromisoformat("2026-11-30T05:00:00.123456+00:00"))
    log.ended(RequestRecord("/api/inference", arrived_s=10.0, code=CLIENT_LEFT, ended_s=12.5, request_id="a"))
    (line,) = lines(tmp_path)
    assert (line["outcome"], line["total_ms"], line["time"]) == ("client_left", 2500.0, "2026-11-30T05:00:00.123+00:00")
