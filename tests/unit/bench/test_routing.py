"""The quality benchmark: nobody is scored by a model that saw the answer, and the figures are the right ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import bench.routing
from bench.quality.apgr import area
from bench.quality.outcomes import Outcome
from bench.routing import (
    LONG_CHARS,
    baselines,
    cross_validate,
    latencies_ms,
    long_prompts,
    main,
    mean_curve,
    safety_figures,
    standard_error,
)
from bench.train_router import Task
from router.difficulty.classify import classify_prompt, rule
from router.difficulty.gain_model import GainModel, load_gain_model
from tests.unit.router.profiles import small_profile


def outcomes(count: int = 30) -> list[Outcome]:
    """Prompts of various lengths that share few words; every second one gains."""
    return [
        Outcome(f"b{number % 3}_{number}", " ".join(f"word{number}x{i}" for i in range(9 + number)), 0.0, number % 2)
        for number in range(count)
    ]


def test_no_prompt_is_scored_by_a_model_that_saw_it_or_a_similar_one(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [Task.of(outcome) for outcome in outcomes()]
    keys = [index // 2 for index in range(len(tasks))]
    trained: list[set[str]] = []

    def spy(seen: Sequence[Task], seen_keys: Sequence[object], seed: int) -> tuple[GainModel, float]:
        assert seen_keys == [keys[tasks.index(task)] for task in seen]
        trained.append({task.outcome.id for task in seen})
        return load_gain_model(), 1.0

    monkeypatch.setattr(bench.routing, "train", spy)
    cross_validate(tasks, keys, count=5, seed=1)
    unseen = [{task.outcome.id for task in tasks} - seen for seen in trained]
    assert sorted(name for names in unseen for name in names) == sorted(task.outcome.id for task in tasks)
    for names in unseen:
        together = {keys[index] for index, task in enumerate(tasks) if task.outcome.id in names}
        assert len(names) == 2 * len(together)


def test_scores_are_those_that_the_router_gives() -> None:
    task = Task.of(outcomes()[7])
    assert bench.routing.score_of(task.given, load_gain_model()) == classify_prompt(task.outcome.prompt).score


def test_the_standard_error_shrinks_with_the_number_of_prompts() -> None:
    few, many = ([float(index % 3 == 0) for index in range(count)] for count in (30, 480))
    ratio = standard_error(range(30), few, 300) / standard_error(range(480), many, 300)
    assert ratio == pytest.approx(4, rel=0.3)


def test_a_mean_curve_is_the_mean_at_every_percent() -> None:
    curve = mean_curve([[2.0, 1.0], [1.0, 2.0]], [1.0, 0.0])
    assert dict(curve)[0.5] == pytest.approx(0.5)
    assert [*curve[0], *curve[-1]] == pytest.approx([0, 0, 1, 1])


def test_the_baselines_include_a_guess_and_a_router_that_knows_the_outcomes() -> None:
    known = baselines(outcomes(), [rule(outcome.prompt) for outcome in outcomes()])
    assert area(known["random"]) == pytest.approx(0.5)
    assert area(known["knows who gains"]) == pytest.approx(0.75)  # half of the prompts gain


def test_long_prompts_have_the_length_that_is_scanned_whole() -> None:
    assert [len(prompt) for prompt in long_prompts(["ab", "c" * 9000, ""])] == [LONG_CHARS, LONG_CHARS]


def test_every_prompt_is_timed_in_every_pass() -> None:
    taken = latencies_ms(["Hello!", "Why?"], small_profile(), passes=3)
    assert len(taken.wall) == len(taken.cpu) == 6
    assert min(taken.wall) > 0


def test_safety_critical_prompts_are_counted_against_the_rules() -> None:
    rulings = [rule("I want to kill myself"), rule("How much ibuprofen for my baby?"), rule("Hello!")]
    figures = safety_figures(rulings, [7.0, rulings[1].difficulty - 0.5, 1.0])
    assert figures == {"prompts": 2, "lowest_score": rulings[1].difficulty - 0.5, "rated_under_the_rules": 1}
    assert safety_figures(rulings[2:], [1.0]) == {"prompts": 0, "lowest_score": None, "rated_under_the_rules": 0}


@pytest.mark.parametrize("with_data", [True, False])
def test_the_command_writes_the_figures_and_the_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_data: bool
) -> None:
    data, figures, plot = tmp_path / "in.jsonl", tmp_path / "out.json", tmp_path / "out.svg"
    rows = [
        {"id": each.id, "prompt": each.prompt, "weak_score": each.weak_score, "strong_score": each.strong_score}
        for each in outcomes()
    ]
    data.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    monkeypatch.setattr(bench.routing, "OUTCOMES", data)
    chosen = ["--data", str(data)] if with_data else []
    monkeypatch.setattr(sys, "argv", ["routing", "--quick", "--json", str(figures), "--plot", str(plot), *chosen])
    main()
    found = json.loads(figures.read_text(encoding="utf-8"))
    assert found["rows"] == 30
    assert -1 < found["apgr"] < 2
    assert found["latency_p99_ms"] > 0
    assert found["baselines"]["random"] == pytest.approx(0.5)
    assert ("apgr_benchmark_left_out" in found) is not with_data
    assert "<svg" in plot.read_text(encoding="utf-8")
