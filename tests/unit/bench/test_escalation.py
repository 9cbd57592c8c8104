"""`bench.escalation` reads what a client has in the end, and compares the ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.escalation import AnswerReader, arguments_of, main, row, wilson
from bench.kit.gsm8k import Problem
from cluster.profiles.reading import load_profile, merge
from serve_app.config import AppConfig

METRICS: dict[str, Any] = {
    "escalation": None,
    "cost_usd": 0.02,
    "energy": {"wh": 0.5},
    "total_ms": 3000,
    "legs": [{"completion_tokens": 10}],
}
SEAM = {"from_tier": "eco", "to_tier": "ultra", "reason": "why", "at_token": 1}


def read(*events: tuple[str, dict[str, Any]]) -> AnswerReader:
    reader = AnswerReader()
    for kind, data in events:
        reader.feed(f"data: {json.dumps({'type': kind, 'data': data})}\n\n".encode(), 0.0)
    return reader


def token(text: str) -> tuple[str, dict[str, Any]]:
    return "token", {"text": text}


def test_the_text_goes_on_after_a_seam_and_is_withdrawn_where_it_begins_anew() -> None:
    seam = ("escalation", SEAM | {"rewrite": False})
    assert read(token("a"), seam, token("b"), ("metrics", METRICS), ("done", {})).text == "ab"
    anew = read(token("a"), ("escalation", SEAM | {"rewrite": True}), token("b"), ("metrics", METRICS), ("done", {}))
    assert (anew.text, anew.ended, anew.error) == ("b", True, None)
    assert read(("error", {"message": "gone"})).error == "gone"


def test_the_figures_are_means_over_all_parts_of_all_answers() -> None:
    climbed = METRICS | {
        "escalation": SEAM | {"applied": True},
        "legs": [{"completion_tokens": 20}, {"completion_tokens": 30}],
    }
    answers = [read(token("#### 4"), ("metrics", METRICS)), read(token("#### 5"), ("metrics", climbed))]
    figures = row("climb", [Problem("2+2?", "4"), Problem("2+2?", "4")], answers)
    assert (figures["right"], figures["climbed"], figures["tokens"], figures["seconds"]) == (0.5, 0.5, 30, 3)
    refused = METRICS | {"escalation": SEAM | {"applied": False}}
    figures = row("climb", [Problem("2+2?", "4")], [read(token("#### 4"), ("metrics", refused))])
    assert (figures["climbed"], figures["advised"]) == (0, 1)
    assert (figures["cost_usd"], figures["wh"]) == pytest.approx((0.02, 0.5))


def test_the_interval_is_wilsons() -> None:
    # Newcombe, Statistics in Medicine 17 (1998), table I: 81 of 263 and 0 of 20.
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)


def test_eco_serves_the_first_model_and_ultra_alone_the_second() -> None:
    weak, strong = "smollm2-135m-instruct-early-exit-4", "smollm2-135m-instruct"
    arguments = arguments_of("local", weak, strong)
    laid_over = merge(load_profile("local").model_dump(mode="json"), {"tiers": arguments["tiers"]})
    config = AppConfig.model_validate(laid_over | {"profile_reason": "test", "models_dir": "/m"} | {"profile": "local"})
    assert {name: [entry.target for entry in tier.chain] for name, tier in config.tiers.items()} == {
        "eco": [weak],
        "balanced": [weak],
        "performance": [weak],
        "ultra": [strong],
    }
    assert [tier.chain[0].speculation for tier in config.tiers.values()] == [None] * 4


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ("one", "must be two different models"),
        ("one,one", "must be two different models"),
        ("smollm2-135m-instruct,huge", "names 'huge', which the profile lacks"),
    ],
)
def test_wrong_models_are_said_before_anything_starts(models: str, message: str, tmp_path: Path) -> None:
    problem = json.dumps({"turns": ["2+2?"], "answer": "4"})
    (tmp_path / "gsm8k.jsonl").write_text("\n".join([problem] * 60))
    with pytest.raises(SystemExit, match=message):
        main(["--models", models, "--prompts", str(tmp_path)])


def test_too_few_problems_are_said_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="has 0 problems, more than 40 are needed"):
        main(["--models", "a,b", "--prompts", str(tmp_path)])
