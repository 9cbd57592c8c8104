import json
from pathlib import Path

import pytest

from bench.reporting.report import markdown_table, print_report, provenance, write_json


def test_a_table_has_a_heading_a_rule_and_aligned_rows() -> None:
    table = markdown_table([{"path": "vllm", "n": 1, "ms": 3.14159}, {"path": "/api", "n": 16, "ms": None}])
    assert table.splitlines() == [
        "| path | n  | ms   |",
        "| ---- | -- | ---- |",
        "| vllm | 1  | 3.14 |",
        "| /api | 16 | -    |",
    ]


@pytest.mark.parametrize(
    ("value", "shown"), [(31_234.5, "31,234"), (12.345, "12.35"), (0.01234, "0.0123"), (-2.5, "-2.50"), (0.0, "0")]
)
def test_numbers_are_shown_with_few_digits(value: float, shown: str) -> None:
    assert f"| {shown}" in markdown_table([{"x": value}]).splitlines()[2]


def test_a_table_of_nothing_says_so() -> None:
    assert markdown_table([]) == "(no rows)"


def test_provenance_names_command_machine_date_versions_and_commit() -> None:
    made_by = provenance()
    assert set(made_by) == {"command", "machine", "load_average_before", "date", "versions", "git"}
    assert made_by["machine"]["cores"] >= 1
    assert made_by["machine"]["memory_gib"] > 0
    assert made_by["machine"]["cpu"]
    assert "python" in made_by["versions"]


def test_where_there_is_no_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert provenance()["git"] == "no commit"


def test_json_holds_the_results_and_their_provenance(tmp_path: Path) -> None:
    path = tmp_path / "new" / "result.json"
    write_json(path, {"tokens_per_s": 3.0}, {"git": "abc"})
    assert json.loads(path.read_text()) == {"tokens_per_s": 3.0, "provenance": {"git": "abc"}}


def test_a_report_names_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    print_report("Title", [{"a": 1}], provenance())
    shown = capsys.readouterr().out
    assert "## Title" in shown
    assert "cores" in shown
