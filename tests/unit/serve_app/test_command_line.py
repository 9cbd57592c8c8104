"""`power-lever COMMAND`: each command lives in its own room."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from serve_app.__main__ import COMMANDS, main


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_its_arguments(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"Usage: power-lever {name}")
    assert "Raises" not in said


def test_the_version_is_that_of_the_installed_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"power-lever, version {version('power-lever')}\n"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n  {name} " in listed for name in COMMANDS)


@pytest.mark.parametrize("arguments", [[], ["run"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "Usage: power-lever [OPTIONS] COMMAND [ARGS]..." in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["profile", "--gpus", "L4:1"], ["settings"]])
def test_output_that_cannot_be_written_is_one_line_and_exit_code_1(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(arguments) == 1
    assert capsys.readouterr().err == "error: stdout cannot be written: No space left on device\n"


def test_a_config_error_is_one_line_and_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", "--profile", str(tmp_path / "none.yaml")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
