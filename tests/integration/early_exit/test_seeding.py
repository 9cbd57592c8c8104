"""A draft is a model like any other: a profile names it, a seed makes it, `list` and `verify` know it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from cluster.profiles.reading import read_profile
from cluster.weights import is_complete, missing_reason
from cluster.weights.command import command
from cluster.weights.early_exit import draft
from cluster.weights.early_exit.calibration import own_answers
from cluster.weights.early_exit.checkpoint import Target
from cluster.weights.folder import State, state_of
from cluster.weights.manifest import read_manifest
from tests.integration.early_exit.conftest import FEW, REPO, TARGET, write_target
from tests.support.commands import run_command

main = partial(run_command, command)

DRAFT = "tiny-draft"
Run = Callable[..., int]


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return write_profile(tmp_path / "profile.yaml", layers=2)


def write_profile(path: Path, layers: int) -> Path:
    raw = read_profile("local")
    raw["models"] = {  # the draft first: it is made last all the same
        DRAFT: {"source": "early_exit", "of": TARGET, "layers": layers},
        TARGET: {"source": "hub", "repo": REPO},
    }
    step: dict[str, Any] = {"name": "only", "target": TARGET, "max_model_len": 256}
    drafted = step | {"speculation": {"method": "draft_model", "draft": DRAFT, "k_max": 3}}
    for name, tier in raw["tiers"].items():
        tier["chain"] = [drafted if name == "eco" else step]
    path.write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")
    return path


@pytest.fixture
def run(models: Path, profile: Path) -> Run:
    # No server listens on port 9: neither a draft nor a complete target needs a hub.
    env = {"MODELS_DIR": str(models), "HF_ENDPOINT": "http://127.0.0.1:9", "HF_TOKEN": "hf_x"}
    return lambda name: main([name, "--profile", str(profile)], env)


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        draft, "own_answers", lambda model, prompts, layers, _: own_answers(model, prompts, layers, FEW)
    )


def test_seed_list_and_verify_handle_a_draft(
    run: Run, models: Path, target: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("list") == 0
    assert "early_exit tiny, 2 layers" in capsys.readouterr().out
    assert run("seed") == 0
    out = capsys.readouterr().out
    assert f"{TARGET}: complete" in out
    assert f"{DRAFT}: fitting the first 2 of 4 layers" in out
    assert f"{DRAFT}: agrees with {TARGET} on " in out
    assert is_complete(models / DRAFT)
    assert missing_reason(models, DRAFT) is None
    assert run("list") == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(DRAFT))
    assert "complete" in line
    assert line.endswith("eco/only (draft)")
    assert run("verify") == 0


def test_a_finished_seed_does_nothing(run: Run, target: Target, capsys: pytest.CaptureFixture[str]) -> None:
    run("seed")
    capsys.readouterr()
    assert run("seed") == 0
    assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines()] == [
        f"{TARGET}: complete",
        f"{DRAFT}: complete",
    ]


def test_verify_finds_a_changed_byte(run: Run, models: Path, target: Target) -> None:
    run("seed")
    weights = models / DRAFT / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert run("verify") == 1


@pytest.mark.parametrize("change", ["target", "layers"])
def test_a_draft_of_a_changed_target_or_depth_is_made_again(
    run: Run, models: Path, profile: Path, target: Target, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    run("seed")
    if change == "target":
        write_target(models, seed=1)
    else:
        write_profile(profile, layers=3)
    capsys.readouterr()
    assert run("list") == 0
    assert "  other  " in capsys.readouterr().out
    before = read_manifest(models / DRAFT)
    assert run("seed") == 0
    assert before is not None
    assert before != read_manifest(models / DRAFT)
    run("list")
    assert "  other  " not in capsys.readouterr().out


def test_a_draft_whose_target_is_gone_is_still_a_model(run: Run, models: Path, target: Target) -> None:
    run("seed")
    (models / TARGET).rename(models / "elsewhere")
    assert run("list") == 0
    assert state_of(models, DRAFT) is State.COMPLETE


def test_without_its_target_it_cannot_be_made_and_says_why(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("seed") == 1
    assert f"error: {DRAFT} is made from {TARGET}: weights of {TARGET} are" in capsys.readouterr().err


def test_missing_space_is_found_before_the_draft_is_made(
    run: Run,
    models: Path,
    target: Target,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10_000))
    assert run("seed") == 1
    assert f"error: no space for {DRAFT}" in capsys.readouterr().err
    assert state_of(models, DRAFT) is State.MISSING


def test_a_killed_draft_is_not_a_model_and_the_next_seed_makes_it(
    run: Run, models: Path, target: Target, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(draft, "write_report", stop)  # the weights are written by then
        assert run("seed") == 130
    assert (models / f"{DRAFT}.partial" / "model.safetensors").exists()
    assert state_of(models, DRAFT) is State.PARTIAL
    run("list")
    assert "partial" in capsys.readouterr().out
    assert run("verify") == 1
    assert run("seed") == 0
    assert sorted(path.name for path in models.iterdir() if path.is_dir()) == [TARGET, DRAFT]


def test_a_draft_killed_while_it_is_made_again_keeps_the_old_one(
    run: Run, models: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("seed")
    old = read_manifest(models / DRAFT)
    write_target(models, seed=1)
    monkeypatch.setattr(draft, "write_report", stop)
    assert run("seed") == 130
    assert is_complete(models / DRAFT)
    assert read_manifest(models / DRAFT) == old


def stop(*_: object) -> None:
    raise KeyboardInterrupt
