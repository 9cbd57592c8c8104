"""`bench.speculation_sim`: what it refuses, in one line, and what it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.speculation_sim import main

GOOD = "{name: a, k_max: 2, step_ms: [[1, 10], [256, 10], [512, 20]], draft_ms: 1}"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"shapes: [\xff]", "must be UTF-8, got byte 0xff at 9"),
        (b"shapes: [", "must be YAML: while parsing a flow node expected the node content"),
        (b"", "must be an object with the key shapes, got NoneType"),
        (b"- {name: a}", "must be an object with the key shapes, got list"),
        (b"shapes: " + b"[" * 1000 + b"]" * 1000, "must be YAML: it is nested too deep"),
        (
            b"shapes: [{name: a, step_ms: [[1, 2]], k_max: 33}]",
            "k_max: Input should be less than or equal to 32, got 33",
        ),
        (b"shapes: {}", "shapes: must be a list, got dict"),
        (b"shapes: []", "shapes: Should have at least 1 entries, got []"),
        (b"shapes: [3]", "shapes.0: Input should be an object, got 3"),
        (b"shapes: [{name: a}]", "shapes.0.step_ms: Field required"),
        (
            b"shapes: [{name: a, step_ms: [[1, .inf]]}]",
            "shapes.0.step_ms.0.1: Input should be a finite number, got Infinity",
        ),
        (
            b"shapes: [{name: a, step_ms: [[1, 2]], draft_ms: .nan}]",
            "shapes.0.draft_ms: Input should be a finite number",
        ),
        (b"shapes: [{name: a, step_ms: [[1, 2]], graph: all}]", "shapes.0.graph: Input should be 'none', 'k_max'"),
        (b"shapes: [{name: a, step_ms: [[2, 2], [1, 2]]}]", "shapes.0: step_ms: tokens must ascend, got [2.0, 1.0]"),
        (f"shapes: [{GOOD}, {GOOD}]".encode(), "shapes: each needs a name of its own, got 'a' more than once"),
    ],
)
def test_a_wrong_file_is_named_with_the_key_and_what_is_allowed(
    content: bytes, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shapes.yaml"
    path.write_bytes(content)
    assert main(["--shapes", str(path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"{path}: ")
    assert words in printed.err
    assert printed.err.count("\n") == 1


def test_a_file_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.yaml"
    assert main(["--shapes", str(path)]) == 2
    assert capsys.readouterr().err == f"{path}: No such file or directory\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--only", "b"], "has a, got 'b'"),
        (["--seeds", "0"], "--seeds: must be at least 1, got 0"),
        (["--steps", "0"], "--steps: must be a positive number, got 0.0"),
        (["--steps", "nan"], "--steps: must be a positive number, got nan"),
    ],
)
def test_a_wrong_option_is_named(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shapes.yaml"
    path.write_text(f"shapes: [{GOOD}]")
    assert main(["--shapes", str(path), *options]) == 2
    assert words in capsys.readouterr().err


def test_every_cell_is_written_and_unknown_keys_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, found = tmp_path / "shapes.yaml", tmp_path / "found.json"
    path.write_text(f"shapes: [{GOOD[:-1]}, colour: red}}]")
    assert main(["--shapes", str(path), "--quick", "--steps", "0.02", "--json", str(found)]) == 0
    assert "'colour' is not known and left out" in capsys.readouterr().err
    cells = json.loads(found.read_text())["cells"]
    assert {(cell["text"], cell["batch"]) for cell in cells} == {
        (text, batch) for text in ("0.2", "0.5", "0.8", "bursty", "mixed") for batch in (1, 8, 32, 128)
    }
    assert all(0.2 < cell["to_best_static"] < 2 for cell in cells)
