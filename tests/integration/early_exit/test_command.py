"""`power-lever weights early-exit`."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from cluster.weights import is_complete
from cluster.weights.command import command
from cluster.weights.early_exit.calibration import Calibration
from cluster.weights.early_exit.checkpoint import Target
from cluster.weights.early_exit.draft import REPORT_NAME, DraftReport
from cluster.weights.manifest import read_manifest
from tests.integration.early_exit.conftest import FEW, TARGET, write_target
from tests.support.commands import run_command

main = partial(run_command, command)

FAST = ["--tokens", str(FEW.tokens)]


@pytest.fixture
def env(models: Path) -> dict[str, str]:
    return {"MODELS_DIR": str(models)}


def make(env: dict[str, str], *arguments: str) -> int:
    return main(["early-exit", "--model", TARGET, *FAST, *arguments], env)


def test_it_makes_a_model_and_prints_its_agreement(
    env: dict[str, str], models: Path, target: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(env, "--layers", "2", "--seed", "5") == 0
    path = models / "tiny-early-exit-2"
    assert is_complete(path)
    report = DraftReport.model_validate_json((path / REPORT_NAME).read_bytes())
    assert report.calibration == Calibration(tokens=FEW.tokens, seed=5)
    out = capsys.readouterr().out
    assert str(report) in out
    assert f"in {path}" in out


def test_the_name_and_the_folder_can_be_chosen(env: dict[str, str], tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_target(other)
    assert make(env, "--layers", "2", "--name", "mine", "--models-dir", str(other)) == 0
    assert is_complete(other / "mine")


def test_an_existing_draft_is_kept_without_force(
    env: dict[str, str], models: Path, target: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make(env, "--layers", "2") == 0
    path = models / "tiny-early-exit-2"
    first = read_manifest(path)
    assert make(env, "--layers", "2", "--seed", "1") == 1
    assert f"error: {path} exists: --force replaces it" in capsys.readouterr().err
    assert read_manifest(path) == first
    assert make(env, "--layers", "2", "--seed", "1", "--force") == 0
    assert read_manifest(path) != first


def test_a_damaged_draft_needs_no_force(env: dict[str, str], models: Path, target: Target) -> None:
    assert make(env, "--layers", "2") == 0
    (models / "tiny-early-exit-2" / "config.json").unlink()
    assert make(env, "--layers", "2") == 0
    assert is_complete(models / "tiny-early-exit-2")


def test_force_replaces_no_other_model(
    env: dict[str, str], models: Path, target: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    write_target(models, "other", seed=1)
    before = read_manifest(models / "other")
    for name in ("other", TARGET):
        assert make(env, "--layers", "2", "--name", name, "--force") == 1
        assert f"error: {models / name} is not a draft, so no draft may replace it" in capsys.readouterr().err
    assert read_manifest(models / "other") == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layers", "9"], "layers: got 9, tiny has 4: allowed are 1 to 4"),
        (["--layers", "2", "--model", "gone"], "no model 'gone' in {models}: it has tiny"),
        (["--layers", "2", "--model", "a/b"], "model name 'a/b' must be a plain folder name"),
        (["--layers", "2", "--name", "../up"], "model name '../up' must be a plain folder name"),
    ],
)
def test_an_impossible_draft_is_one_line_and_exit_1(
    env: dict[str, str],
    models: Path,
    target: Target,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    assert make(env, *arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert message.format(models=models) in error
    assert [path.name for path in models.iterdir() if path.is_dir()] == [TARGET]


def test_the_target_is_the_bundled_model_unless_named(
    env: dict[str, str], models: Path, target: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["early-exit", "--layers", "2"], env) == 1
    assert f"no model 'smollm2-135m-instruct' in {models}: it has tiny" in capsys.readouterr().err
    assert main(["early-exit", "--layers", "2", "--profile", "gpu"], env) == 1
    assert "The profile has qwen3-4b-instruct-2507-w4a16, " in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--layers", "0"], ["--layers", "2", "--seed", "-1"], ["--layers", "two"], []])
def test_a_wrong_number_or_none_is_a_usage_error(env: dict[str, str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        make(env, *arguments)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from cluster.weights.command import command\n"
        "try: command.main(['early-exit', '--help'])\n"
        "finally: assert not {'torch', 'transformers', 'huggingface_hub', 'ray', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, stdout=subprocess.DEVNULL)
