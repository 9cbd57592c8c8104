"""The learned model: a weighted sum of similarities, n-grams and pieces, and its place in the reference mix."""

from __future__ import annotations

import dataclasses
from pathlib import Path

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


def test_a_missing_or_foreign_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no gain model"):
        GainModel.load(tmp_path / "none.npz")
    with pytest.raises(ConfigError, match="is no gain model"):
        GainModel.load(PIECES_FILE)
    (tmp_path / "text.npz").write_text("no", encoding="utf-8")
    with pytest.raises(ConfigError, match="is no gain model"):
        GainModel.load(tmp_path / "text.npz")


def test_the_shipped_files_stay_small() -> None:
    assert PIECES_FILE.stat().st_size + GAIN_MODEL_FILE.stat().st_size < 1_000_000
