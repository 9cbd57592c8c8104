"""The commands that make pages from the catalogue show their help, and write nothing that they cannot make."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench import estimate, fits


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the repository, with both files of the estimator."""
    monkeypatch.setattr(estimate, "ROOT", tmp_path)
    for name in ("cluster/catalogue/estimates.yaml", "bench/results/estimates.md"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("before\n")
    return tmp_path


def contents(root: Path) -> set[str]:
    return {path.read_text() for path in root.rglob("*.*") if path.is_file()}


def test_the_help_of_the_estimator_estimates_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        estimate.main(["--help"])
    assert "usage: python -m bench.estimate" in capsys.readouterr().out
    assert contents(root) == {"before\n"}


def test_an_unknown_option_of_the_estimator_is_refused(root: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        estimate.main(["--hlep"])
    assert contents(root) == {"before\n"}


def test_without_aiconfigurator_no_file_is_touched_and_the_command_says_how_to_get_it(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "aiconfigurator", None)
    assert estimate.main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("bench.estimate needs aiconfigurator (")
    assert f"`pip install aiconfigurator=={estimate.VERSION} " in captured.err
    assert captured.err.count("\n") == 1
    assert contents(root) == {"before\n"}


def test_the_help_of_the_page_of_fits_is_not_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        fits.main(["--help"])
    out = capsys.readouterr().out
    assert out.startswith("usage: python -m bench.fits")
    assert "# Profiles for GPUs" not in out
