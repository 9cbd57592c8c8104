"""The score of a router, on outcomes small enough to work out by hand."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.calibration.apgr import apgr, area, gain_curve, recovered_at

GAINS = [1.0, 0.0, 0.0, 0.0]


def test_a_router_that_knows_the_outcomes_recovers_all_with_the_first_prompt() -> None:
    # Rises to 1 at a quarter, then flat: 1/8 + 3/4.
    assert gain_curve([4, 3, 2, 1], GAINS) == ((0, 0), (0.25, 1), (0.5, 1), (0.75, 1), (1, 1))
    assert apgr([4, 3, 2, 1], GAINS) == pytest.approx(0.875)


def test_a_router_that_is_always_wrong_recovers_all_with_the_last_prompt() -> None:
    assert apgr([1, 2, 3, 4], GAINS) == pytest.approx(0.125)


def test_equal_scores_are_a_guess() -> None:
    assert gain_curve([7, 7, 7, 7], GAINS) == ((0, 0), (1, 1))
    assert apgr([7, 7, 7, 7], GAINS) == pytest.approx(0.5)


def test_a_router_that_avoids_the_strong_models_errors_scores_more_than_one() -> None:
    # 1, 2, 2, then 1 of 1: half of (0+1 + 1+2 + 2+2 + 2+1) quarters.
    assert apgr([4, 3, 2, 1], [1, 1, 0, -1]) == pytest.approx(11 / 8)


def test_random_scores_are_a_half_on_average() -> None:
    rng = random.Random(1)
    gains = [float(rng.random() < 0.3) for _ in range(200)]
    areas = [apgr([rng.random() for _ in gains], gains) for _ in range(200)]
    assert sum(areas) / len(areas) == pytest.approx(0.5, abs=0.01)


@given(st.lists(st.tuples(st.integers(-3, 3), st.sampled_from((-1.0, 0.0, 0.5, 1.0))), min_size=1, max_size=20))
def test_the_order_of_rows_and_the_scale_of_scores_do_not_matter(rows: list[tuple[int, float]]) -> None:
    scores, gains = [score for score, _ in rows], [gain for _, gain in rows]
    if sum(gains) <= 0:
        with pytest.raises(ValueError, match="must gain"):
            gain_curve(scores, gains)
        return
    curve = gain_curve(scores, gains)
    assert [*curve[0], *curve[-1]] == pytest.approx([0, 0, 1, 1])
    assert area(curve) == pytest.approx(apgr([3 * score + 1 for score in reversed(scores)], gains[::-1]))
    assert area(curve) + apgr([-score for score in scores], gains) == pytest.approx(1)


def test_the_recovered_share_is_on_the_curve() -> None:
    curve = gain_curve([2, 1], [3.0, 1.0])
    assert [recovered_at(curve, share) for share in (0, 0.25, 0.5, 0.75, 1)] == [0, 0.375, 0.75, 0.875, 1]


def test_scores_and_gains_belong_together() -> None:
    with pytest.raises(ValueError, match="2 scores for 1 gains"):
        gain_curve([1, 2], [1])
