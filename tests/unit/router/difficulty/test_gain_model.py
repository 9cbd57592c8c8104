"""The learned part adds what its curves say, within bounds, and tells why."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.difficulty.gain_curves import GAIN_MODEL
from router.difficulty.gain_model import (
    FADE_WORDS,
    FEATURES,
    MOST_ADDED,
    MOST_TAKEN,
    PLAIN_GAIN,
    POINTS_PER_GAIN,
    Curve,
    GainModel,
)
from router.difficulty.surface import Surface

PLAIN = Surface(4.5, 0.2, 0.3, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, "text")
FLAT = Curve((0.0,), (0.0,))
ENOUGH_WORDS = FADE_WORDS[1]


def model(answers: dict[str, float] | None = None, **curves: Curve) -> GainModel:
    return GainModel(tuple(curves.get(name, FLAT) for name in FEATURES), tuple((answers or {}).items()))  # type: ignore[arg-type]


def test_a_curve_is_straight_between_its_knots_and_flat_beyond_them() -> None:
    curve = Curve((1.0, 2.0, 4.0), (0.0, 1.0, -1.0))
    assert [curve.at(value) for value in (-9, 1, 1.25, 2, 3, 4, 99)] == [0, 0, 0.25, 1, 0, -1, -1]


def test_parts_add_up() -> None:
    made = model({"code": 0.5}, digits=Curve((0.0, 1.0), (0.0, 2.0)), lines=Curve((0.0, 1.0), (-1.0, 1.0)))
    assert made.gain(PLAIN._replace(digits=0.25)) == pytest.approx(0.5 + 1)
    assert made.gain(PLAIN._replace(answer="code", lines=0.0)) == pytest.approx(0.5 - 1)


def test_a_small_gain_is_worth_its_points_and_a_large_one_less_than_the_most() -> None:
    plain, small, large = (model({"text": PLAIN_GAIN + gain}) for gain in (0.0, 0.001, -9.0))
    assert plain.shift(PLAIN, ENOUGH_WORDS) == (0.0, ())
    assert small.shift(PLAIN, ENOUGH_WORDS).points == pytest.approx(0.001 * POINTS_PER_GAIN, rel=1e-3)
    assert large.shift(PLAIN, ENOUGH_WORDS).points == pytest.approx(-MOST_TAKEN)
    assert model({"text": 9.0}).shift(PLAIN, ENOUGH_WORDS).points == pytest.approx(MOST_ADDED)


def test_a_text_of_few_words_has_no_form_to_speak_of() -> None:
    made = model({"text": 0.05})
    few, many = FADE_WORDS
    points = [made.shift(PLAIN, words).points for words in (0, few, (few + many) // 2, many, 10 * many)]
    assert points[:2] == [0, 0]
    assert points[2] == pytest.approx(points[3] / 2)
    assert points[4] == points[3] > 0
    assert made.shift(PLAIN, few).reasons == ()


def test_the_strongest_parts_that_point_the_same_way_are_told_and_add_up_to_the_points() -> None:
    made = model(
        {"code": 0.01},
        lines=Curve((0.0,), (0.03,)),
        digits=Curve((0.0,), (0.02,)),
        symbols=Curve((0.0,), (-0.02,)),
        options=Curve((0.0,), (PLAIN_GAIN + 0.001,)),
    )
    shift = made.shift(PLAIN._replace(answer="code", lines=math.log2(1 + 12), digits=0.125), ENOUGH_WORDS)
    # 0.041 of gain is 4 * tanh(0.41) = 1.554 points, 37.9 a unit.
    assert shift.points == pytest.approx(1.554, abs=1e-3)
    assert shift.reasons == ("12 lines (+1.1)", "12% digits (+0.8)", "asks for code (+0.4)")


features = st.builds(
    Surface,
    *[st.floats(0, 64)] * len(FEATURES),
    st.sampled_from(("either_or", "choice", "code", "text")),
)


@given(features, st.integers(0, 10**6))
def test_the_shipped_model_is_bounded_and_finite_for_any_form(text: Surface, words: int) -> None:
    shift = GAIN_MODEL.shift(text, words)
    assert -MOST_TAKEN <= shift.points <= MOST_ADDED
    assert shift == GAIN_MODEL.shift(text, words)


def test_the_shipped_model_has_a_curve_for_every_feature() -> None:
    assert len(GAIN_MODEL.curves) == len(FEATURES)
    for curve in GAIN_MODEL.curves:
        assert len(curve.knots) == len(curve.gains)
        assert list(curve.knots) == sorted(set(curve.knots))
