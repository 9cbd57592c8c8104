"""The commands that make pages from the catalogue show their help, and write nothing that they cannot make."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from bench import estimate, fits
from cluster.catalogue.speed import split_mb
from cluster.catalogue.types import catalogue

FILES = ("bench/results/estimates.yaml", "cluster/catalogue/speed.yaml", "bench/results/estimates.md")
REPOSITORY = estimate.ROOT


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the repository, with the files of the estimator."""
    monkeypatch.setattr(estimate, "ROOT", tmp_path)
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
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


def test_the_coefficients_and_the_page_are_those_of_the_committed_rows(root: Path) -> None:
    rows, *made = FILES
    (root / rows).write_text((REPOSITORY / rows).read_text())
    assert estimate.main(["--refit"]) == 0
    again = "make it again: python -m bench.estimate --refit"
    assert [(root / name).read_text() for name in made] == [(REPOSITORY / name).read_text() for name in made], again


def test_the_fit_finds_the_coefficients_that_rows_were_made_with() -> None:
    known = catalogue()
    card = {"bandwidth_share": 0.5, "layer_ms": 0.02, "split_ms": 0.01, "split_ms_per_mb": 0.1}
    rows: estimate.Rows = {}
    for name, parallel in (("llama-3.1-8b-instruct-fp8", 1), ("llama-3.3-70b-instruct-fp8", 4)):
        model = known.models[name]
        steps = {}
        for batch in estimate.BATCHES:
            kv = batch * 640 * model.kv_bytes_per_token(model.layers, parallel)
            read = (model.bytes_read(batch) / parallel + kv) / (0.5 * 3350e6)
            split = 0.01 * model.layers + 0.1 * split_mb(model, parallel, batch) if parallel > 1 else 0
            steps[batch] = read + 0.02 * model.layers + split
        # 2 x 7.5e9 x 512 / (0.4 x 1978e9) = 9.7 ms, and 32 layers.
        compute = 2 * model.active_weights * 512 / (0.4 * 1978e9)
        ttft = compute + 0.02 * model.layers
        rows[name] = {"H100": {parallel: estimate.Row(weights="fp8", ttft_ms=ttft, step_ms=steps)}}
    found = yaml.safe_load(estimate.fitted(rows, known))
    assert {key: found["H100"][key] for key in card} == pytest.approx(card, rel=0.01)
    assert found["H100"]["compute_share"] == pytest.approx(0.4, rel=0.01)
    # Without rows of its own a card has those of the card like it.
    assert found["B200"] == found["H100"]


def test_the_help_of_the_page_of_fits_is_not_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        fits.main(["--help"])
    out = capsys.readouterr().out
    assert out.startswith("usage: python -m bench.fits")
    assert "# Profiles for GPUs" not in out
