"""The fit finds curves that are there, and draws none where there is nothing."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from bench.quality.gain_fit import STIFFNESSES, Sample, best_stiffness, fit, squared_error
from router.difficulty.features import Features
from router.difficulty.gain_model import FEATURES


def samples(count: int, gain: Callable[[Features], float], seed: int = 0) -> list[Sample]:
    rng = random.Random(seed)
    forms = [
        Features._make([*(rng.random() for _ in FEATURES), rng.choice(("choice", "code", "text"))])
        for _ in range(count)
    ]
    return [Sample(form, gain(form) + rng.gauss(0, 0.3), 0.5) for form in forms]


def tent(form: Features) -> float:
    """Most in the middle."""
    return 1 - abs(2 * form.digits - 1)


def test_a_curve_that_is_there_is_found() -> None:
    model = fit(samples(4000, lambda form: tent(form) - form.lines), stiffness=2)
    low, middle, high = (model.curves["digits"].at(value) for value in (0.02, 0.5, 0.98))
    assert middle - low == pytest.approx(0.9, abs=0.15)
    assert middle - high == pytest.approx(0.9, abs=0.15)
    lines = model.curves["lines"]
    assert lines.at(0.9) - lines.at(0.1) == pytest.approx(-0.8, abs=0.1)


def test_a_form_of_answer_that_gains_more_is_found() -> None:
    answers = dict(fit(samples(4000, lambda form: float(form.answer == "code")), stiffness=2).answers)
    assert answers["code"] - answers["text"] == pytest.approx(1, abs=0.05)
    assert answers["either_or"] == pytest.approx(answers["choice"], abs=0.4)  # never seen, so near the mean


def test_a_feature_without_effect_has_a_flat_curve() -> None:
    model = fit(samples(4000, tent), stiffness=8)
    assert all(abs(gain) < 0.1 for name, curve in model.curves.items() if name != "digits" for gain in curve.gains)


def test_gains_are_relative_to_the_mean() -> None:
    seen = samples(500, lambda form: 5 + form.digits)
    model = fit(seen, stiffness=2)
    assert sum(model.gain(sample.features) for sample in seen) / len(seen) == pytest.approx(0, abs=0.01)


def test_a_higher_stiffness_makes_flatter_curves() -> None:
    seen = samples(200, tent)
    spreads = [
        max(model.curves["digits"].gains) - min(model.curves["digits"].gains)
        for model in (fit(seen, stiffness) for stiffness in (0.1, 10, 1000))
    ]
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[0] > 5 * spreads[-1]


def test_a_constant_feature_is_no_error() -> None:
    seen = [Sample(Features(0, 0, 0, 0, 0, 0, 0, 0, 0, "text"), gain, 0.5) for gain in (0.0, 1.0)]
    assert fit(seen, stiffness=2).gain(seen[0].features) == pytest.approx(0)


def test_noise_is_fitted_stiffly_and_a_clear_curve_is_not() -> None:
    def split(seen: list[Sample]) -> list[tuple[list[Sample], list[Sample]]]:
        half = len(seen) // 2
        return [(seen[:half], seen[half:]), (seen[half:], seen[:half])]

    assert best_stiffness(split(samples(200, lambda form: 0.0))) == STIFFNESSES[-1]
    assert best_stiffness(split(samples(200, lambda form: 5 * tent(form)))) == STIFFNESSES[0]


def test_the_error_of_a_model_is_that_of_its_samples_by_weight() -> None:
    model = fit([Sample(Features(0, 0, 0, 0, 0, 0, 0, 0, 0, "text"), 1.0, 1.0)], stiffness=2)
    unseen = Sample(Features(0, 0, 0, 0, 0, 0, 0, 0, 0, "text"), 3.0, 0.5)
    assert squared_error(model, [unseen], mean_gain=1.0) == pytest.approx(0.5 * (3 - 1) ** 2)


def test_without_samples_there_is_no_fit() -> None:
    with pytest.raises(ValueError, match="no samples"):
        fit([], stiffness=2)
