"""`power-lever usage` on files: which it reads, what it counts, and what it says of what it cannot read."""

from __future__ import annotations

import csv
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from serve_app.__main__ import main

LEG = {"tier": "eco", "completion_tokens": 5, "busy_s": 0.5, "energy_wh": 0.01, "cost_usd": 0.0001}


def line(request_id: str = "r", **changes: Any) -> str:
    fields: dict[str, Any] = {
        "time": "2026-11-30T05:00:00.123+00:00",
        "request_id": request_id,
        "route": "/api/inference",
        "key": "0123456789ab",
        "key_name": "alice",
        "outcome": "ok",
        "tier": "eco",
        "category": "math",
        "total_ms": 12.5,
        "prompt_tokens": 7,
        "ttft_ms": 250.0,
        "agent_usd": None,
        "legs": [LEG],
        "counted": "whole",
    }
    return json.dumps(fields | changes) + "\n"


def log(folder: Path, *lines: str, name: str = "requests_r1.jsonl") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(lines), encoding="utf-8")
    return folder / name


def sums(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[dict[str, Any], str]:
    """The sums as JSON, and what stderr says."""
    assert main(["usage", "--json", *map(str, arguments)]) == 0
    told = capsys.readouterr()
    read: dict[str, Any] = json.loads(told.out)
    return read, told.err


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["usage", *map(str, arguments)]) in (1, 2)
    told = capsys.readouterr()
    assert told.out == ""
    return told.err


def test_the_table_has_a_row_for_each_group_and_the_total(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    climbed = [LEG, LEG | {"tier": "ultra", "completion_tokens": 40, "busy_s": 2.0}]
    file = log(tmp_path, line("a"), line("b", legs=climbed), line("c", key=None, key_name=None, outcome="client_left"))
    assert main(["usage", "--by", "key,tier", "--logs", str(file)]) == 0
    head, *rows = [row.split() for row in capsys.readouterr().out.splitlines()]
    assert head[:5] == ["key", "tier", "requests", "errors", "left"]
    assert [row[: len(row) - 9] for row in rows] == [
        ["-", "eco", "1", "0"],
        ["alice", "(0123456789ab)", "eco", "2", "0"],
        ["alice", "(0123456789ab)", "ultra", "0", "0"],
        ["total", "3", "0"],
    ]
    assert rows[-1] == ["total", "3", "0", "1", "21", "55", "3.5", "0.04", "0.0004", "0", "250", "250"]


def test_json_has_the_groups_and_the_total(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = log(tmp_path, line("a", agent_usd=0.002), line("b", ttft_ms=750.0, outcome="overloaded"))
    read, told = sums(capsys, "--by", "day,key", "--since", "2026-11-30", "--until", "2026-11-30", "--logs", file)
    assert told == ""
    assert (read["by"], read["since"], read["until"]) == (["day", "key"], "2026-11-30", "2026-11-30")
    (group,) = read["groups"]
    assert (group["day"], group["key"], group["key_name"]) == ("2026-11-30", "0123456789ab", "alice")
    assert {name: group[name] for name in read["total"]} == read["total"]
    assert read["total"] == pytest.approx(
        {
            **{"requests": 2, "errors": 1, "left": 0, "estimated": 0, "prompt_tokens": 14, "completion_tokens": 10},
            **{"engine_s": 1.0, "energy_wh": 0.02, "cost_usd": 0.0002, "agent_usd": 0.002},
            **{"ttft_ms_median": 250.0, "ttft_ms_p95": 750.0},
        }
    )


def test_csv_has_the_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = log(tmp_path, line("a"), line("b", tier="ultra", legs=[LEG | {"tier": "ultra"}]))
    assert main(["usage", "--csv", "--by", "tier,key", "--logs", str(file)]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [(row["tier"], row["key"], row["key_name"], row["requests"]) for row in rows] == [
        ("eco", "0123456789ab", "alice", "1"),
        ("ultra", "0123456789ab", "alice", "1"),
    ]


def test_a_folder_gives_its_logs_with_rotated_and_packed_ones_and_no_other_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log(tmp_path / "node-1", line("a"))
    log(tmp_path / "node-1", line("b"), name="requests_r1.jsonl.2")
    log(tmp_path / "node-2", line("no"), name="power-lever.log")
    log(tmp_path / "node-2", line("no"), name="refused_r2.jsonl")
    (tmp_path / "node-2" / "requests_r2.jsonl.1.gz").write_bytes(gzip.compress(line("c").encode()))
    read, told = sums(capsys, "--logs", tmp_path)
    assert (read["total"]["requests"], told) == (3, "")


def test_a_line_counts_once_however_often_it_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = log(tmp_path / "one", line("a"), line("b"))
    log(tmp_path / "copies", line("b"), line("c"))
    (tmp_path / "link").symlink_to(file)
    read, told = sums(capsys, "--logs", file, file, tmp_path / "one", tmp_path / "copies", tmp_path / "link")
    assert read["total"]["requests"] == 3
    assert told == "1 lines were there twice, and count once\n"


@pytest.mark.parametrize(
    "broken",
    [
        '{"time": "2026-11-30T05:00:00+00:00", "requ',
        "[1]",
        "null",
        "\x00\x01",
        '{"a": 1}',
        line(time="yesterday"),
        line(time=5),
        line(time="2026-11-30T05:00:00.123"),
        line(tier=5),
        line(prompt_tokens="7"),
        line(prompt_tokens=-1),
        line(prompt_tokens=10**13),
        line(legs=[LEG | {"completion_tokens": 10**13}]),
        line(legs=[LEG | {"energy_wh": 1e308}]),
        line(agent_usd=1e308),
        line(ttft_ms=1e13),
        line(legs=[LEG | {"busy_s": "long"}]),
        line(legs=[LEG | {"busy_s": -1}]),
        line(legs=[5]),
        line(legs="eco"),
        line(legs=[{}]),
        line(agent_usd=True),
        "1" + "0" * 400,
    ],
)
def test_a_broken_or_foreign_line_is_skipped_and_counted(
    broken: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read, told = sums(capsys, "--logs", log(tmp_path, line("a"), broken.rstrip("\n") + "\n", line("b")))
    assert read["total"]["requests"] == 2
    assert told == "skipped 1 lines that are none of a request log\n"


def test_a_packed_file_that_is_cut_counts_as_far_as_it_goes_and_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "requests_r.jsonl.gz"
    path.write_bytes(gzip.compress("".join(line(str(one)) for one in range(3000)).encode())[:-100])
    assert main(["usage", "--json", "--logs", str(path)]) == 1
    told = capsys.readouterr()
    assert 0 < json.loads(told.out)["total"]["requests"] < 3000
    assert told.err.startswith(f"error: {path}: ")


def test_a_line_of_an_earlier_version_has_no_legs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = {"completion_tokens": 9, "busy_s": 0.25, "energy_wh": None, "cost_usd": 0.5}
    stale = {name: value for name, value in json.loads(line("a", **old)).items() if name not in ("legs", "counted")}
    read, _ = sums(capsys, "--by", "tier", "--logs", log(tmp_path, json.dumps(stale) + "\n"))
    (group,) = read["groups"]
    assert (group["tier"], group["completion_tokens"], group["engine_s"], group["cost_usd"]) == ("eco", 9, 0.25, 0.5)


def test_nothing_that_matches_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = log(tmp_path, line("a"))
    for filters in (["--key", "bob"], ["--since", "2026-12-01"], ["--until", "2026-11-29"]):
        assert main(["usage", "--logs", str(file), *filters]) == 0
        told = capsys.readouterr()
        assert (told.out, told.err) == ("", "no request matches, in 1 files\n")


def test_requests_of_one_key_by_name_or_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = log(tmp_path, line("a"), line("b", key="ffffffffffff", key_name="bob"), line("c", key=None, key_name=None))
    for key in ("alice", "0123456789ab", "-"):
        read, _ = sums(capsys, "--key", key, "--logs", file)
        assert read["total"]["requests"] == 1


def test_what_is_estimated_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, told = sums(capsys, "--logs", log(tmp_path, line("a", counted="estimated"), line("b")))
    assert told.startswith("of 1 requests (the client left, they failed, or a replica was lost) what an engine did")


def test_without_paths_it_reads_the_logs_of_all_sessions_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert "no request log is in the logs of Ray on this machine" in refused(capsys)
    for session in ("session_1", "session_2"):
        log(tmp_path / "ray" / session / "logs" / "serve", line(session))
    os.symlink("session_2", tmp_path / "ray" / "session_latest")
    read, told = sums(capsys)
    assert (read["total"]["requests"], told) == (2, "")


@pytest.mark.parametrize("by", ["", "keys", "key,key", "key,", "key;tier", "Key"])
def test_what_is_no_property_is_wrong_usage(by: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, "--by", by, "--logs", log(tmp_path, line()))
    assert "key, tier, day, category, route, outcome" in told


def test_wrong_paths_and_days_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{tmp_path}/none: cannot be read: No such file or directory" in refused(capsys, "--logs", tmp_path / "none")
    assert f"no request log is in {tmp_path}" in refused(capsys, "--logs", tmp_path)
    file = log(tmp_path, line())
    assert "Invalid value" in refused(capsys, "--logs", file, "--since", "30.11.2026")
    assert "is before" in refused(capsys, "--logs", file, "--since", "2026-12-02", "--until", "2026-12-01")
    assert "paths go after --logs" in refused(capsys, file)


def test_nothing_in_a_file_reaches_the_terminal_as_an_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = log(tmp_path, line("a", outcome="\x1b[31mred\n[bold]x"))
    assert main(["usage", "--by", "outcome", "--logs", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "?[31mred?[bold]x" in shown
