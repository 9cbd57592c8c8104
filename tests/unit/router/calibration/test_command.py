"""`power-lever calibrate` learns from an operator's outcomes, says what changed, and names a wrong line."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from router.calibration.command import main
from router.calibration.outcomes import read_outcomes
from router.difficulty.classify import classify_prompt
from router.difficulty.gain_model import load_gain_model
from router.errors import ConfigError
from router.registry import AutoSettings

FRUIT = ("apple", "pear", "plum", "cherry", "grape", "melon")
METAL = ("iron", "copper", "zinc", "nickel", "silver", "cobalt")


def rows(count: int = 120) -> list[dict[str, object]]:
    """The strong model gains on metals, and on nothing else."""
    rng = random.Random(3)
    return [
        {
            "prompt": " ".join(rng.choices(METAL if number % 2 else FRUIT, k=8)),
            "weak_score": 0,
            "strong_score": number % 2,
        }
        for number in range(count)
    ]


def written(path: Path, lines: list[dict[str, object]]) -> Path:
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def test_it_learns_what_gains_and_writes_a_model_that_the_config_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.calibration.command.FOLDS", 2)
    data, output = written(tmp_path / "in.jsonl", rows()), tmp_path / "own.npz"
    assert main(["--data", str(data), "--output", str(output)]) == 0
    said = capsys.readouterr().out
    assert "120 outcomes of 1 sources" in said
    assert "0.75" in said  # half of the prompts gain, and it knows which
    assert f"gain_model: {output}" in said
    auto = AutoSettings(gain_model=str(output))
    assert classify_prompt("zinc and copper and iron", auto=auto).score > 0.5
    assert classify_prompt("pear and plum and apple", auto=auto).score < 0.5


SERVE_CONFIG = "applications: [{{name: a, args: {{profile: gpu, auto: {{shares: [0, 0, 0, 100]}}}}}}]"
PROFILE = "auto: {{shares: [0, 0, 0, 100], gain_model: {model}}}"


@pytest.mark.parametrize(("config", "now"), [(SERVE_CONFIG, "as shipped"), (PROFILE, "as now")])
def test_the_shares_and_the_present_model_are_those_of_the_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: str, now: str
) -> None:
    data, output, model = written(tmp_path / "in.jsonl", rows()), tmp_path / "new.npz", tmp_path / "now.npz"
    load_gain_model().save(model)
    (tmp_path / "config.yaml").write_text(config.format(model=model), encoding="utf-8")
    assert main(["--data", str(data), "--output", str(output), "--config", str(tmp_path / "config.yaml")]) == 0
    said = capsys.readouterr().out
    assert f"of these prompts: 0/0/0/100 {now}, 0/0/0/100 refitted" in said


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("auto: {shares: [1, 2]}", "auto: shares"),
        ("auto: {share: [50, 30, 15, 5]}", "auto: share: unknown key"),
        ("[1, 2]", "is no profile and no serve_config.yaml"),
        ("applications: 3", "is no profile and no serve_config.yaml"),
        ("a: b: c", "is no profile and no serve_config.yaml"),
    ],
)
def test_a_config_without_what_is_needed_is_named(tmp_path: Path, config: str, problem: str) -> None:
    (tmp_path / "config.yaml").write_text(config, encoding="utf-8")
    with pytest.raises(ConfigError, match=problem):
        main(["--data", "in.jsonl", "--config", str(tmp_path / "config.yaml")])


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"weak_score": 0, "strong_score": 1}, r"in\.jsonl:2: prompt: Field required"),
        ({"prompt": "x", "weak_score": "much", "strong_score": 1}, r"in\.jsonl:2: weak_score: Input should be a valid"),
        ({"prompt": "x", "weak_score": 0, "strong_score": 8}, r"in\.jsonl:2: strong_score: .* less than or equal to 1"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_outcomes(written(tmp_path / "in.jsonl", [*rows(1), line]))


def test_text_that_is_no_json_an_empty_file_and_a_missing_one_are_errors(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("prompt,weak_score\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"in\.jsonl:1: Invalid JSON"):
        read_outcomes(tmp_path / "in.jsonl")
    (tmp_path / "in.jsonl").write_text("\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="no outcomes"):
        read_outcomes(tmp_path / "in.jsonl")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_outcomes(tmp_path / "none.jsonl")


def test_too_few_outcomes_or_none_that_gains_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="99 outcomes, at least 100 are needed"):
        main(["--data", str(written(tmp_path / "in.jsonl", rows(99)))])
    without = [row | {"strong_score": 0} for row in rows()]
    with pytest.raises(ConfigError, match="gains nothing"):
        main(["--data", str(written(tmp_path / "in.jsonl", without))])
    with pytest.raises(ConfigError, match="must end with"):
        main(["--data", "in.jsonl", "--output", "model.yaml"])
