"""The fit where outcomes say little, and how sure a difference of two orders is."""

from __future__ import annotations

import random

import numpy as np
import pytest

from router.calibration.fit import Samples, cross_validated, fit, quality, standard_error
from router.calibration.outcomes import Outcome
from router.difficulty.pieces import load_pieces


def samples(gains: list[float], groups: list[int] | None = None) -> Samples:
    rng = random.Random(4)
    words = ("iron", "pear", "zinc", "plum", "prove", "sort", "house", "tree")
    return Samples.of(
        [
            Outcome(
                prompt=" ".join(rng.choices(words, k=9)),
                weak_score=0,
                strong_score=gain,
                id=f"own:{place if groups is None else groups[place]}",
            )
            for place, gain in enumerate(gains)
        ],
        load_pieces(),
    )


def test_samples_whose_parts_gain_nothing_are_fitted_all_the_same() -> None:
    found = samples([1.0 if place == 7 else -0.01 for place in range(60)])
    assert found.mean_gain()[0] > 0
    seen = next(seen for seen, left_out in found.folds(5, seed=0) if 7 in left_out)
    assert found.part(seen).mean_gain()[0] < 0
    assert np.isfinite(cross_validated(found, 5, seed=0)).all()
    assert np.isfinite(fit(found.part(seen)).coefficients).all()


def test_prompts_of_one_form_are_fitted_without_magnifying_what_rounding_left() -> None:
    # Nine letters of a script without pieces, each: all numbers of their form are the same.
    outcomes = [Outcome(prompt=chr(0x10A00 + place) * 9, weak_score=0, strong_score=place % 2) for place in range(120)]
    assert np.isfinite(cross_validated(Samples.of(outcomes, load_pieces()), 5, seed=0)).all()


def test_the_error_of_the_mean_gain_is_that_of_the_groups() -> None:
    # Ten of 0 and ten of 1: 0.5 / sqrt(20). As two groups, each moves the mean by a quarter: sqrt(2) / 4.
    assert samples([0.0, 1.0] * 10).mean_gain() == pytest.approx((0.5, 0.5 / 20**0.5))
    assert samples([0.0, 1.0] * 10, [0, 1] * 10).mean_gain() == pytest.approx((0.5, 2**0.5 / 4))


def test_the_standard_error_is_that_of_the_difference_over_many_samples() -> None:
    rng = np.random.default_rng(0)
    drawn = [samples(rng.integers(0, 2, 80).astype(float).tolist()) for _ in range(60)]
    pairs = [(rng.random(80).astype(np.float32), rng.random(80).astype(np.float32)) for _ in drawn]
    true = np.std([quality(new, one) - quality(old, one) for one, (old, new) in zip(drawn, pairs, strict=True)])
    errors = [standard_error(old, new, one) for one, (old, new) in zip(drawn, pairs, strict=True)]
    assert np.mean(errors) == pytest.approx(true, rel=0.25)


def test_equal_orders_differ_by_nothing_for_sure() -> None:
    found = samples([0.0, 1.0] * 20)
    scores = np.arange(40, dtype=np.float32)
    assert standard_error(scores, 2 * scores + 1, found) == pytest.approx(0, abs=1e-9)


def test_one_group_is_one_draw() -> None:
    found = samples([0.0, 1.0] * 20)
    grouped = samples([0.0, 1.0] * 20, [place // 10 for place in range(40)])
    old, new = np.zeros(40, np.float32), np.arange(40, dtype=np.float32)
    tied = standard_error(old, np.repeat(new[:4], 10), grouped)
    assert tied > 0
    assert standard_error(old, new, found) != pytest.approx(standard_error(old, new, grouped), rel=0.05)


def test_where_nothing_gains_there_is_no_error() -> None:
    with pytest.raises(ValueError, match="must gain"):
        standard_error(np.zeros(4, np.float32), np.ones(4, np.float32), samples([0.0] * 4))
