"""The command line of the autoscaling benchmark: bad traffic ends it at once, and a small run has what issues name."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from bench import autoscaling
from bench.scaling.policies import FAMILIES, OURS

HEADING = "arrival_s,prompt_tokens,completion_tokens\n"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["bench.autoscaling", *arguments])
    return autoscaling.main()


def written(path: Path, arrivals_s: list[float]) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(HEADING + "".join(f"{arrival_s:g},500,50\n" for arrival_s in arrivals_s))
    return str(path)


def test_a_bad_file_ends_the_benchmark_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("arrival_s,tokens\n0,5\n")
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "--trace", str(bad))
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith(f"{bad}: no column prompt_tokens, completion_tokens; ")
    assert told.count("\n") == 1


def test_files_of_the_same_name_are_refused_because_a_report_could_not_tell_them_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [written(tmp_path / folder / "mine.csv", [0.0, 700.0]) for folder in ("one", "two")]
    with pytest.raises(SystemExit):
        run(monkeypatch, "--trace", files[0], "--trace", files[1])
    assert capsys.readouterr().err == "--trace: got mine, mine; allowed are files of different names\n"


def test_a_run_reports_the_front_of_every_policy_its_page_and_its_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(autoscaling, "QUICK_SEEDS", {2: 1})
    monkeypatch.setattr(autoscaling, "COUNTED_FROM_S", 60.0)
    file = written(tmp_path / "mine.csv", np.linspace(0.0, 100.0, 50).tolist())
    assert run(monkeypatch, "--quick", "--trace", file, "--json", str(tmp_path / "out.json")) == 0
    written_json = json.loads((tmp_path / "out.json").read_text())
    rows = written_json["fronts"]
    assert {row["policy"] for row in rows} == set(FAMILIES)
    assert {(row["trace"], row["replicas_max"], row["seeds"]) for row in rows} == {("mine", 2, 1)}
    # 42 s are counted, of 102; all replicas cost all of them.
    [all_kept] = [row for row in rows if (row["policy"], row["setting"]) == ("fixed", 2)]
    assert all_kept["gpu_hours"] == pytest.approx(2 * 42 / 3600)
    assert len([row for row in rows if row["policy"] == OURS]) > 3
    assert {"setting", "slo_miss_share"} <= set(rows[0])
    assert {row["rival"] for row in written_json["goals"]} == {"serve_default", "keda_queue", "fixed"}
    assert "## Against the goal" in capsys.readouterr().out
    assert "![Requests over the TTFT target of 2 s" in (tmp_path / "out.md").read_text()
    assert "mine, 2 replicas" in (tmp_path / "out.svg").read_text()
