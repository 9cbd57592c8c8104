"""The learned model: a weighted sum of similarities, n-grams and pieces, and its place in the reference mix."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from router.difficulty.gain_model import (
    GAIN_MODEL_FILE,
    SHARPNESS,
    GainModel,
    Knots,
    expected_gains,
    kernel,
    load_gain_model,
)
from router.difficulty.pieces import PIECES_FILE
from router.errors import ConfigError

PROMPT = "Design a distributed cache."


def test_a_vector_is_as_similar_as_it_is_near() -> None:
    here = np.array([[0.0, 0.0]], np.float32)
    there = np.array([[0.0, 0.0], [1.0, 0.0], [3.0, 4.0]], np.float32)
    assert kernel(here, there, 0.5)[0] == pytest.approx([1, np.exp(-0.5), np.exp(-12.5)])


def test_a_curve_shares_its_value_between_two_knots() -> None:
    knots = Knots(np.array([0, 0, 0, 1]), np.array([1.0, 2.0, 4.0, 7.0], np.float32))
    shares = knots.curves(np.array([[1.25, 0], [-9.0, 0], [9.0, 0]], np.float32))
    assert shares.tolist() == [[0.75, 0.25, 0, 1], [1, 0, 0, 1], [0, 0, 1, 1]]


def test_the_gain_is_the_mean_of_what_is_regressed_and_of_the_likely_kinds_mean() -> None:
    kinds = np.array([0.1, 0.5], np.float32)
    # Equal fits: 0.3 is the mean of both kinds. A fit that is better by far: 0.5.
    outputs = np.array([[0.2, 0.4, 0.4], [0.2, 0.0, 1.0]], np.float32)
    assert expected_gains(outputs, kinds) == pytest.approx([0.25, 0.35])
    # Odds of 3 to 1: 0.1 * 3/4 + 0.5 / 4 = 0.2.
    better = np.log(3) / SHARPNESS
    assert expected_gains(np.array([[0.0, better, 0.0]], np.float32), kinds) == pytest.approx([0.1])


def test_a_single_kind_says_nothing() -> None:
    assert expected_gains(np.array([[0.2, 1.0]], np.float32), np.array([0.4], np.float32)) == pytest.approx([0.2])


def test_the_score_is_the_share_of_the_reference_mix_that_gains_less() -> None:
    model = dataclasses.replace(load_gain_model(), quantiles=np.array([0.0, 0.2, 0.6], np.float32))
    assert [model.share_below(gain) for gain in (-1, 0.1, 0.2, 0.4, 9)] == pytest.approx([0, 0.25, 0.5, 0.75, 1])


def test_a_model_is_read_as_it_was_written(tmp_path: Path) -> None:
    load_gain_model().save(tmp_path / "own.npz")
    assert load_gain_model(str(tmp_path / "own.npz")).gain(PROMPT) == pytest.approx(load_gain_model().gain(PROMPT))


def _text(path: Path) -> None:
    path.write_text("no", encoding="utf-8")


def _another(path: Path) -> None:
    np.savez(path, names=np.zeros(3))


def _cut(path: Path) -> None:
    load_gain_model().save(path)
    whole = bytearray(path.read_bytes())
    whole[200:9000] = bytes(8800)
    path.write_bytes(whole)


def _changed(**changes: object) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with np.load(GAIN_MODEL_FILE) as stored:
            np.savez(path, **{**stored, **changes})

    return write


@pytest.mark.parametrize(
    ("write", "problem"),
    [
        (lambda path: None, "there is no such file"),
        (Path.mkdir, "it is not a file"),
        (_text, "it is not an .npz file"),
        (Path.touch, "it is not an .npz file"),
        (_another, "it has no scalars"),
        (_cut, "it is damaged, or was made by something else"),
        (_changed(base=np.array([{}], object)), "it is damaged, or was made by something else"),
        (_changed(base=np.array(["a"])), "base has 1 dimensions of type <U1"),
        (_changed(weights=np.zeros(3, np.float32)), "weights has 1 dimensions of type float32"),
        (_changed(scalars=np.ones(3, np.float32)), "scalars has 3 numbers, not 4"),
        (_changed(scalars=np.array([1, 1, np.nan, 1])), "a scale is not a finite number above 0"),
        (_changed(scalars=np.array([1, 0, 1, 1])), "a scale is not a finite number above 0"),
        (_changed(quantiles=np.array([0, np.nan, 1])), "quantiles has numbers that are not finite"),
        (_changed(quantiles=np.array([0, 0.4, 0.3])), "the quantiles do not rise"),
        (_changed(quantiles=np.array([0.4, 0.4])), "the quantiles do not rise"),
        (_changed(quantiles=np.array([0.4])), "the quantiles do not rise"),
    ],
)
def test_a_missing_or_foreign_file_is_an_error_that_says_why(
    write: Callable[[Path], None], problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "own.npz"
    write(path)
    with pytest.raises(ConfigError) as caught:
        GainModel.load(path)
    assert str(caught.value) == f"auto.gain_model: {path} is no gain model of `power-lever calibrate`: {problem}"


@pytest.mark.parametrize(
    "changes",
    [
        {"form_mean": np.zeros(3, np.float32)},
        {"base": np.zeros(2, np.float32)},
        {"landmarks": np.zeros((5, 7), np.float16)},
        {"gram_weights": np.zeros((4, 4), np.float32)},
    ],
)
def test_sizes_that_do_not_fit_are_another_versions(changes: dict[str, object], tmp_path: Path) -> None:
    _changed(**changes)(tmp_path / "own.npz")
    with pytest.raises(ConfigError, match=r"own\.npz was made by another version; run `power-lever calibrate` again"):
        GainModel.load(tmp_path / "own.npz")


def test_a_model_for_pieces_of_another_size_is_another_versions(tmp_path: Path) -> None:
    model = load_gain_model()
    smaller = dataclasses.replace(
        model,
        inputs=dataclasses.replace(model.inputs, piece_mean=model.inputs.piece_mean[1:]),
        landmarks=model.landmarks[:, 1:],
    )
    smaller.save(tmp_path / "own.npz")
    with pytest.raises(ConfigError, match="was made by another version"):
        load_gain_model(str(tmp_path / "own.npz"))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"base": np.array([np.nan], np.float32)}, "base has numbers that are not finite"),
        ({"width": float("inf")}, "a scale is not a finite number above 0"),
        ({"quantiles": np.array([1.0, 0.0], np.float32)}, "the quantiles do not rise"),
    ],
)
def test_a_model_that_rates_nothing_is_not_written(changes: dict[str, Any], problem: str, tmp_path: Path) -> None:
    model = dataclasses.replace(load_gain_model(), **changes)
    with pytest.raises(ConfigError, match=f"not written, since the fitted model is none: {problem}"):
        model.save(tmp_path / "own.npz")
    assert not (tmp_path / "own.npz").exists()


def test_a_folder_that_is_missing_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none/own\.npz: cannot be written: No such file or directory"):
        load_gain_model().save(tmp_path / "none" / "own.npz")


def test_the_shipped_files_stay_small() -> None:
    assert PIECES_FILE.stat().st_size + GAIN_MODEL_FILE.stat().st_size < 1_000_000
