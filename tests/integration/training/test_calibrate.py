"""`power-lever calibrate` learns from an operator's outcomes, says what changed, and names a wrong line."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from router.calibration.command import command
from router.calibration.outcomes import read_outcomes
from router.difficulty.classify import classify_prompt
from router.difficulty.gain_model import load_gain_model
from router.errors import ConfigError
from router.registry import AutoSettings
from tests.support.commands import run_command

main = partial(run_command, command)

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
    assert "120 outcomes of 1 source;" in said
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
    with pytest.raises(
        ConfigError, match="99 outcomes of 99 different prompts, at least 100 different prompts are needed"
    ):
        refit(tmp_path, rows(99))
    with pytest.raises(ConfigError, match="1 outcome of 1 different prompt, at least"):
        refit(tmp_path, rows(1))
    with pytest.raises(ConfigError, match="gains nothing"):
        refit(tmp_path, [row | {"strong_score": 0} for row in rows()])


def refit(folder: Path, lines: list[dict[str, object]], *options: str) -> int:
    """Refit to these lines, into `new.npz`."""
    data, output = written(folder / "in.jsonl", lines), folder / "new.npz"
    return main(["--data", str(data), "--output", str(output), *options])


@pytest.mark.parametrize(
    ("prompts", "problem"),
    [
        ([f"hello {number % 3}" for number in range(150)], "150 outcomes of 3 different prompts, at least 100 "),
        (["Hello there"] * 100 + ["hello  there"] * 100, "200 outcomes of 1 different prompt, at least 100 "),
        (["word " * 9000] * 110, "110 outcomes of 1 different prompt, at least 100 "),
        (
            [f"{'word ' * 900}{number}{' word' * 900}" for number in range(120)],
            "120 different prompts, but auto mode can tell only [0-9]+ apart, at least 100 ",
        ),
    ],
)
def test_prompts_that_are_too_much_alike_are_refused_and_nothing_is_written(
    tmp_path: Path, prompts: list[str], problem: str
) -> None:
    lines = [{"prompt": prompt, "weak_score": 0, "strong_score": at % 2} for at, prompt in enumerate(prompts)]
    with pytest.raises(ConfigError, match=problem):
        refit(tmp_path, lines)
    assert not (tmp_path / "new.npz").exists()


def test_what_was_fitted_without_a_finite_number_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = np.full(120, np.nan, np.float32)
    monkeypatch.setattr("router.calibration.command.cross_validated", lambda samples, folds, seed: nothing)
    with pytest.raises(ConfigError, match=r"in\.jsonl: the prompts are too much alike, or their scores are"):
        refit(tmp_path, rows())
    assert not (tmp_path / "new.npz").exists()


def test_a_gain_that_may_be_chance_is_refused(tmp_path: Path) -> None:
    rng = random.Random(1)
    lines = [
        row | {"weak_score": rng.random(), "strong_score": rng.random(), "source": f"s{at}"}
        for at, row in enumerate(rows())
    ]
    gains = [float(str(line["strong_score"])) - float(str(line["weak_score"])) for line in lines]
    if sum(gains) < 0:
        lines = [line | {"weak_score": line["strong_score"], "strong_score": line["weak_score"]} for line in lines]
    with pytest.raises(ConfigError, match=r"does not surely gain over the weak one \(mean gain 0\.\d+ with a standard"):
        refit(tmp_path, lines)


def noise() -> list[dict[str, object]]:
    """Who gains has nothing to do with the prompt."""
    rng = random.Random(2)
    return [row | {"strong_score": int(rng.random() < 0.4)} for row in rows()]


def test_a_refit_that_is_not_better_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem = (
        r"not surely better than the shipped one \([+-]0\.\d+ with a standard error of 0\.\d+\), so .*new\.npz was not"
    )
    with pytest.raises(ConfigError, match=problem):
        refit(tmp_path, noise())
    said = capsys.readouterr().out
    assert "APGR on them: " in said
    assert "wrote" not in said
    assert not (tmp_path / "new.npz").exists()


def test_a_refit_that_is_worse_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "router.calibration.command.cross_validated",
        lambda samples, folds, seed: -samples.gains + np.linspace(0, 0.1, len(samples), dtype=np.float32),
    )
    with pytest.raises(
        ConfigError, match=r"refitted model is worse than the shipped one \(-0\.\d+ with a standard error"
    ):
        refit(tmp_path, rows())
    assert not (tmp_path / "new.npz").exists()


def test_a_refit_that_is_not_better_is_written_by_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refit(tmp_path, noise(), "--force") == 0
    said = capsys.readouterr().out
    assert "because of --force, although the refitted model is not surely better than the shipped one" in said
    assert "Put it on every node" not in said
    load_gain_model(str(tmp_path / "new.npz"))


def test_the_output_is_looked_at_before_the_data(tmp_path: Path) -> None:
    (tmp_path / "folder.npz").mkdir()
    for output, problem in (
        ("model.yaml", "must end with .npz"),
        (str(tmp_path / "none" / "own.npz"), f"cannot be written: there is no folder {tmp_path / 'none'}"),
        (str(tmp_path / "folder.npz"), "cannot be written: it is not a file"),
        ("/proc/own.npz", "/proc/own.npz cannot be written: "),
    ):
        with pytest.raises(ConfigError) as caught:
            main(["--data", "none.jsonl", "--output", output])
        assert str(caught.value).startswith("--output: ")
        assert problem in str(caught.value)
    with pytest.raises(ConfigError, match=r"none\.jsonl: cannot be read"):
        main(["--data", "none.jsonl", "--output", str(tmp_path / "own.npz")])
    assert not (tmp_path / "own.npz").exists()


def test_null_counts_as_none_and_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    line = {"prompt": "x\u2028y", "weak_score": 0, "strong_score": 1}
    nulls: dict[str, object] = {"source": None, "kind": None, "weight": None, "id": None}
    text = "\n".join(json.dumps(one, ensure_ascii=False) for one in (line, line | nulls))
    (tmp_path / "in.jsonl").write_text("\ufeff" + text, encoding="utf-8")
    first, second = read_outcomes(tmp_path / "in.jsonl")
    assert first == second
    assert (second.source, second.weight, second.id, second.prompt) == ("own", 1, "", "x\u2028y")


def test_keys_that_are_not_used_are_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refit(tmp_path, [row | {"weak": 1, "gain": 2} for row in rows()]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"warning: {tmp_path / 'in.jsonl'}: keys that are not used: weak, gain\n")
    assert said.count("warning") == 1
    assert "mean gain 0.500" in said
