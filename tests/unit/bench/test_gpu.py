"""`python -m bench.gpu` refuses in one line what it cannot do, before it writes anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.gpu import main, named
from cluster.profiles.reading import load_profile


@pytest.fixture(autouse=True)
def _no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("an engine was started")

    monkeypatch.setattr("bench.gpu.engine_process", refused)
    monkeypatch.setenv("MODELS_DIR", str(tmp_path / "models"))
    monkeypatch.chdir(tmp_path)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return why the command does not run."""
    assert main(["--profile", "local", "--engines-only", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err.strip()


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf", "ten"])
def test_minutes_must_be_a_positive_number(minutes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--profile", "local", f"--minutes={minutes}"])
    assert f"argument --minutes: got {minutes!r}, must be a positive number" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_entries_that_are_none_are_refused_with_those_that_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiers = load_profile("local").tiers
    names = [f"{name}/{entry.name}" for name, tier in tiers.items() for entry in tier.chain]
    assert refusal(capsys, "--entries", names[0], "eco/none", "ngram") == (
        f"--entries: got 'eco/none', 'ngram', allowed are {', '.join(names)}"
    )
    last = names[-1]
    first_tier = [name for name in names if name.startswith("eco/")]
    assert refusal(capsys, "--quick", "--entries", last) == (
        f"--entries: got {last!r}, allowed are {', '.join(first_tier)}"
    )
    assert list(tmp_path.iterdir()) == []


def test_without_ray_it_says_before_it_measures_how_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bench.gpu.find_spec", lambda name: None)
    assert main(["--profile", "local"]) == 2
    assert capsys.readouterr().err.endswith("give --engines-only\n")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_for_the_results_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    assert refusal(capsys, "--json", str(tmp_path / "out")) == (
        f"--json: got {tmp_path / 'out'}, which is a folder, must be a file"
    )
    assert [path.name for path in tmp_path.rglob("*")] == ["out"]


def test_results_where_the_table_is_written_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "card.md"
    assert refusal(capsys, "--json", str(path)) == (
        f"--json: got {path}, must not end in .md, as the table is written there"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("text")
    path = tmp_path / "file" / "card.json"
    assert refusal(capsys, "--json", str(path)).startswith(f"--json: got {path}, cannot be written: ")
    assert (tmp_path / "file").read_text() == "text"
    assert refusal(capsys, "--json", "/proc/card.json").startswith("--json: got /proc/card.json, cannot be written: ")


def test_another_commands_file_is_refused_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"rows": []}')
    assert "other.json, which is no result of this command: machine: Field required" in refusal(
        capsys, "--json", str(path)
    )
    assert path.read_text() == '{"rows": []}'
    assert list(tmp_path.iterdir()) == [path]


def test_a_profiles_file_is_the_same_profile_in_any_folder() -> None:
    local = load_profile("local")
    assert named("a/mine.yaml", local) == named("/b/mine.yaml", local) != named("other.yaml", local)
    assert named("local", local) != named("local", load_profile("gpu"))
