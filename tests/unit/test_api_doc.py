"""docs/api.md lists every field of `config`, `metrics` and `/api/tiers`, and every error code."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from router.agent.leaving import Leaving
from router.agent.metering import Meter
from router.agent.result import AgentResult
from router.agent.settings import AgentSettings
from router.escalation import Move
from router.observation import ClusterGpus, GpuSupply, Learned, Observation, TierState, Watts
from router.plan import plan
from router.request import InferenceRequest
from router.runs.summary import Recent, RunSummary
from serve_app.api.escalation import Escalated
from serve_app.api.sse import config_data, metrics_data
from serve_app.api.views import tiers_view
from serve_app.engine.interface import DraftCount, Finished, Leg, SpecStats
from tests.support.app_config import app_config

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/api.md").read_text(encoding="utf-8")
CONFIG = app_config()
PLAN = plan(InferenceRequest(prompt="Hello"), Observation(), CONFIG)
NAME: Any = "NAME"
"""Stands for every key that is a name and not a field: a category, a kind of GPU, who drafts."""


def documented(heading: str) -> list[str]:
    """The first column of the table under that heading; `a.{b,c}` stands for `a.b` and `a.c`."""
    section = PAGE.split(f"\n{heading}\n", 1)[1].split("\n#", 1)[0]
    column = "\n".join(row.split("|")[1] for row in section.splitlines() if row.startswith("|"))
    return [each for written in re.findall(r"`([^`]+)`", column) for each in expanded(written)]


def expanded(written: str) -> list[str]:
    before, brace, rest = written.partition("{")
    if not brace:
        return [written]
    inside, _, after = rest.partition("}")
    return [whole for each in inside.split(",") for whole in expanded(before + each + after)]


def fields(value: object, place: str = "") -> Iterator[str]:
    """The dotted places of all values in JSON data."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from fields(inner, f"{place}.{key}" if place else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for inner in value:
            yield from fields(inner, place + "[]")
    else:
        yield place


def metrics() -> dict[str, Any]:
    spec = SpecStats(reasons={NAME: 1}, drafts={NAME: DraftCount()})
    data = metrics_data(
        PLAN,
        CONFIG,
        Finished("stop", 1, 1, 0.0, spec, 0.5),
        arrived_s=0.0,
        admitted_s=0.0,
        first_token_s=None,
        ended_s=1.0,
        legs=[Leg("eco", "entry", 1, 0.5, "done")],
    )
    settings = AgentSettings()
    meter = Meter(settings.prices, settings.budget_usd)
    escalated = Escalated(Move("climb", "balanced", "why"), "eco", 1, rewrite=False, applied=True)
    agent = AgentResult.of("single_shot", settings.model, meter, 1.0, "text")
    return data | {"agent": agent.metrics(), "escalation": escalated.metrics()}


def tiers() -> dict[str, Any]:
    recent = Recent(1.0, 1.0, 1.0)
    measured = {"ttft_ms", "engine_ttft_ms", "total_ms", "tokens_per_s", "completion_tokens", "energy_wh", "cost_usd"}
    measured |= {"first_logprob", "worst_logprob"}
    runs = RunSummary(runs=1.0, finish_reasons={NAME: 1.0}, **dict.fromkeys(measured, recent))  # type: ignore[arg-type]
    state = TierState(
        running=1, watts=Watts(), learned=Learned({NAME: 0.5}), recent=runs, recent_by_category={NAME: runs}
    )
    gpus = ClusterGpus({NAME: GpuSupply()}, coming={NAME: 1}, failures={NAME: "no"})
    leaving = Leaving.of(AgentSettings(), "single_shot", {})
    return tiers_view(CONFIG, Observation(dict.fromkeys(CONFIG.tiers, state), gpus), leaving)


@pytest.mark.parametrize(
    ("heading", "data"),
    [
        ("#### `config`", config_data("r1", PLAN, CONFIG, stub=False)),
        ("## The decision", json.loads(json.dumps(PLAN.decision))),
        ("#### `metrics`", metrics()),
        ("## GET /api/tiers", tiers()),
    ],
    ids=["config", "decision", "metrics", "tiers"],
)
def test_every_field_is_documented_and_no_other(heading: str, data: dict[str, Any]) -> None:
    real = {re.sub(r"^(tiers\[\]\.recent\.categories\.NAME)\..*", r"\1", place) for place in fields(data)}
    real -= {"tiers[].drafts", "tiers[].chain[].speculation"}  # null where an entry makes no drafts
    listed = documented(heading)
    assert sorted(set(listed)) == sorted(listed)
    assert sorted(listed) == sorted(real)


def codes() -> Iterator[str]:
    """Every error code in the source of the API, and of HAProxy's own answers."""
    for path in (*(ROOT / "serve_app").rglob("*.py"), ROOT / "cluster/haproxy.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            first = node.args[0] if node.args else None
            if name in ("ApiError", "EngineError", "Failure") and isinstance(first, ast.Constant):
                yield str(first.value)
            if name == "_refusal" and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
                yield str(node.args[1].value)
            if name == "bad_request":
                given = [each.value for each in node.keywords if each.arg == "code"]
                yield str(given[0].value) if given and isinstance(given[0], ast.Constant) else "bad_request"
    routing = (ROOT / "serve_app/api/routing.py").read_text(encoding="utf-8")
    yield from re.findall(r'40\d: "(\w+)"', routing)


def test_every_error_code_is_documented_and_no_other() -> None:
    assert sorted(documented("### Error codes")) == sorted(set(codes()))
