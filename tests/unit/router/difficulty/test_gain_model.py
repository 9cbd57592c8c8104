"""The learned model adds what its curves say, within bounds, and gives its reasons."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from router.difficulty.features import Features
from router.difficulty.gain_model import (
    FADE_WORDS,
    FEATURES,
    MOST_ADDED,
    MOST_TAKEN,
    PLAIN_GAIN,
    POINTS_PER_GAIN,
    Curve,
    GainModel,
    load_gain_model,
)

PLAIN = Features(4.5, 0.2, 0.3, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, "text")
FLAT = Curve(knots=(0.0,), gains=(0.0,))
ENOUGH_WORDS = FADE_WORDS[1]


def model(answers: dict[str, float] | None = None, **curves: Curve) -> GainModel:
    return GainModel(curves={name: curves.get(name, FLAT) for name in FEATURES}, answers=answers or {})  # type: ignore[arg-type]


def test_a_curve_is_straight_between_its_knots_and_flat_beyond_them() -> None:
    curve = Curve(knots=(1.0, 2.0, 4.0), gains=(0.0, 1.0, -1.0))
    assert [curve.at(value) for value in (-9, 1, 1.25, 2, 3, 4, 99)] == [0, 0, 0.25, 1, 0, -1, -1]


def test_parts_add_up() -> None:
    made = model(
        {"code": 0.5},
        digits=Curve(knots=(0.0, 1.0), gains=(0.0, 2.0)),
        lines=Curve(knots=(0.0, 1.0), gains=(-1.0, 1.0)),
    )
    assert made.gain(PLAIN._replace(digits=0.25)) == pytest.approx(0.5 + 1)
    assert made.gain(PLAIN._replace(answer="code", lines=0.0)) == pytest.approx(0.5 - 1)


def test_a_small_gain_is_worth_its_points_and_a_large_one_less_than_the_most() -> None:
    plain, small, large = (model({"text": PLAIN_GAIN + gain}) for gain in (0.0, 0.001, -9.0))
    assert plain.shift(PLAIN, ENOUGH_WORDS) == (0.0, ())
    assert small.shift(PLAIN, ENOUGH_WORDS).points == pytest.approx(0.001 * POINTS_PER_GAIN, rel=1e-3)
    assert large.shift(PLAIN, ENOUGH_WORDS).points == pytest.approx(-MOST_TAKEN)
    assert model({"text": 9.0}).shift(PLAIN, ENOUGH_WORDS).points == pytest.approx(MOST_ADDED)


def test_a_text_of_few_words_gets_no_points() -> None:
    made = model({"text": 0.05})
    few, many = FADE_WORDS
    points = [made.shift(PLAIN, words).points for words in (0, few, (few + many) // 2, many, 10 * many)]
    assert points[:2] == [0, 0]
    assert points[2] == pytest.approx(points[3] / 2)
    assert points[4] == points[3] > 0
    assert made.shift(PLAIN, few).reasons == ()


def test_the_reasons_are_the_strongest_parts_in_the_same_direction() -> None:
    made = model(
        {"code": 0.01},
        lines=Curve(knots=(0.0,), gains=(0.03,)),
        digits=Curve(knots=(0.0,), gains=(0.02,)),
        symbols=Curve(knots=(0.0,), gains=(-0.02,)),
        options=Curve(knots=(0.0,), gains=(PLAIN_GAIN + 0.001,)),
    )
    shift = made.shift(PLAIN._replace(answer="code", lines=math.log2(1 + 12), digits=0.125), ENOUGH_WORDS)
    # 0.041 of gain is 4 * tanh(0.41) = 1.554 points, 37.9 a unit.
    assert shift.points == pytest.approx(1.554, abs=1e-3)
    assert shift.reasons == ("12 lines (+1.1)", "12% digits (+0.8)", "asks for code (+0.4)")


features = st.builds(
    Features,
    *[st.floats(0, 64)] * len(FEATURES),
    st.sampled_from(("either_or", "choice", "code", "text")),
)


@given(features, st.integers(0, 10**6))
def test_the_shipped_model_is_bounded_and_finite_for_any_form(text: Features, words: int) -> None:
    shift = load_gain_model().shift(text, words)
    assert -MOST_TAKEN <= shift.points <= MOST_ADDED
    assert shift == load_gain_model().shift(text, words)


@pytest.mark.parametrize(
    ("curves", "problem"),
    [
        ({"digits": {"knots": [0.0], "gains": [0.0]}}, "curves must be"),
        ({name: {"knots": [1.0, 0.0], "gains": [0.0, 0.0]} for name in FEATURES}, "knots must rise"),
        ({name: {"knots": [0.0, 1.0], "gains": [0.0]} for name in FEATURES}, "knots must rise"),
    ],
)
def test_a_model_that_does_not_fit_the_features_is_refused(curves: dict[str, object], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        GainModel.model_validate({"curves": curves, "answers": {}})
