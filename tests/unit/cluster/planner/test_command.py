"""`power-lever profile`, and the examples in docs/profiles."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import patch

import pytest

from bench import fits
from cluster.catalogue.memory import memory_problems
from cluster.planner.supply import parse
from cluster.profiles.auto import GpuCount
from cluster.profiles.reading import load_profile
from serve_app.__main__ import main

EXAMPLES = Path(__file__).parents[4] / "docs/profiles"
NAMES = ("one-l4", "one-h100", "eight-h100", "four-a10g", "mixed")


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_what_its_command_prints(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8")
    command = re.match(r"# Made by `power-lever (profile --gpus (\S+))`", text)
    assert command is not None
    assert main(command[1].split()) == 0
    again = f"power-lever {command[1]} --force --output docs/profiles/{name}.yaml"
    assert capsys.readouterr().out == text, f"make it again: {again}"


def test_there_are_no_other_examples() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_loads_by_its_path_and_fits(name: str) -> None:
    assert memory_problems(load_profile(str(EXAMPLES / f"{name}.yaml"))) == []


def test_the_profile_may_be_written_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my.yaml"
    assert main(["profile", "--gpus", "L4:1", "--output", str(path)]) == 0
    assert capsys.readouterr().out == ""
    assert load_profile(str(path)) == load_profile("plan:L4:1")


def test_a_file_that_exists_is_replaced_only_if_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("mine\n")
    assert main(["profile", "--gpus", "L4:1", "--output", str(path)]) == 1
    assert capsys.readouterr().err == f"error: --output: {path} exists: --force replaces it\n"
    assert path.read_text() == "mine\n"
    assert main(["profile", "--gpus", "L4:1", "--output", str(path), "--force"]) == 0
    assert load_profile(str(path)) == load_profile("plan:L4:1")


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--gpus", "L4:1", "--output", str(tmp_path)]) == 1
    assert "cannot be written: Is a directory" in capsys.readouterr().err


def test_an_unknown_gpu_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--gpus", "T4:1"]) == 1
    assert capsys.readouterr().err.startswith("error: --gpus: unknown T4; allowed are L4, ")


def test_the_page_of_what_fits_where_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert fits.main([]) == 0
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out == page, "make it again: python -m bench.fits > docs/profiles/README.md"


def test_without_gpus_and_without_a_cluster_the_error_says_what_to_give(capsys: pytest.CaptureFixture[str]) -> None:
    with patch("ray.init", side_effect=ConnectionError("none found\nor so")):
        assert main(["profile"]) == 1
    said = capsys.readouterr().err
    assert said == "error: no Ray cluster here (none found): name your GPUs, as in --gpus L4:1\n"


def test_an_address_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "nonsense")
    assert main(["profile"]) == 1
    assert capsys.readouterr().err.startswith("error: RAY_ADDRESS: got 'nonsense', allowed are HOST:PORT")


def test_cards_of_the_cluster_that_the_catalogue_lacks_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for cards, code in ((parse("L4:1"), 0), ((), 1)):
        found = GpuCount(3, 0, cards, ("GeForce-RTX-4090",))
        with patch("ray.init"), patch("ray.shutdown"), patch("cluster.profiles.auto.count_gpus", return_value=found):
            assert main(["profile"]) == code
        assert "GeForce-RTX-4090" in capsys.readouterr().err
