"""Fit the router's gain model: smooth curves by penalised least squares, in closed form.

Every curve is a line with knots at quantiles of its feature. A penalty on its bends makes it straight, and another on
its slope makes it flat, unless the outcomes show more. Each prompt counts in two forms, as given and bare of its
benchmark's template, with half the weight each. The model gets no word of a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from router.difficulty.features import ANSWER_FORMS, Features
from router.difficulty.gain_model import FEATURES, Curve, GainModel

Floats = NDArray[np.float64]

KNOTS = 6
"""Most knots of a curve."""
TAILS = 0.02
"""This share of the values at either end is beyond the outermost knots, where curves are flat."""
STIFFNESSES = (2.0, 4.0, 8.0)
"""Weights of the penalties to choose from. With higher ones the squared error on a few hundred outcomes may be smaller,
but the order of prompts worse."""
RIDGE = 1e-6
"""Makes the equations solvable if a feature has no effect."""
DECIMALS = 4
"""Decimals of the model's numbers: rounding changes a difficulty by at most 0.002 points for each curve."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One form of a prompt, the strong model's gain, and the weight of the sample."""

    features: Features
    gain: float
    weight: float


def fit(samples: Sequence[Sample], stiffness: float) -> GainModel:
    """Return the model that fits the samples best under penalties of this weight.

    Raises:
        ValueError: there are no samples.
    """
    if not samples:
        raise ValueError("no samples to fit")
    gains = np.array([sample.gain for sample in samples])
    weights = np.array([sample.weight for sample in samples])
    knots = [_knots(_column(samples, field)) for field in range(len(FEATURES))]
    blocks = [_hats(_column(samples, field), knots[field]) for field in range(len(FEATURES))]
    blocks.append(_answers(samples))
    means = [weights @ block / weights.sum() for block in blocks]
    design = np.concatenate([block - mean for block, mean in zip(blocks, means, strict=True)], axis=1)
    penalty = _block_diagonal(
        [*(_curve_penalty(len(ends), stiffness) for ends in knots), stiffness * np.eye(len(ANSWER_FORMS))]
    )
    left = design.T @ (design * weights[:, None]) + penalty + RIDGE * np.eye(design.shape[1])
    right = design.T @ (weights * (gains - weights @ gains / weights.sum()))
    solved = np.split(np.linalg.solve(left, right), np.cumsum([block.shape[1] for block in blocks])[:-1])
    added = [values - mean @ values for values, mean in zip(solved, means, strict=True)]
    curves = [Curve(knots=_rounded(x), gains=_rounded(y)) for x, y in zip(knots, added[:-1], strict=True)]
    return GainModel(
        curves=dict(zip(FEATURES, curves, strict=True)),
        answers=dict(zip(ANSWER_FORMS, _rounded(added[-1]), strict=True)),
    )


def squared_error(model: GainModel, samples: Sequence[Sample], mean_gain: float) -> float:
    """Return the weighted sum of the squared errors of the model, whose zero is this mean gain."""
    return sum(sample.weight * (sample.gain - mean_gain - model.gain(sample.features)) ** 2 for sample in samples)


def best_stiffness(folds: Sequence[tuple[Sequence[Sample], Sequence[Sample]]]) -> float:
    """Return the stiffness whose models, trained on the first of each pair, have the least error on the second."""

    def error(stiffness: float) -> float:
        return sum(squared_error(fit(seen, stiffness), unseen, _mean_gain(seen)) for seen, unseen in folds)

    return min(STIFFNESSES, key=error)


def _mean_gain(samples: Sequence[Sample]) -> float:
    return sum(sample.weight * sample.gain for sample in samples) / sum(sample.weight for sample in samples)


def _column(samples: Sequence[Sample], field: int) -> Floats:
    return np.array([sample.features[:-1][field] for sample in samples])


def _knots(values: Floats) -> Floats:
    return np.unique(np.round(np.quantile(values, np.linspace(TAILS, 1 - TAILS, KNOTS)), DECIMALS))


def _hats(values: Floats, knots: Floats) -> Floats:
    """Return the share of each knot's height at each value: (values, knots); each row sums to 1."""
    if len(knots) == 1:
        return np.ones((len(values), 1))
    inside = np.clip(values, knots[0], knots[-1])
    left = np.clip(np.searchsorted(knots, inside, side="right") - 1, 0, len(knots) - 2)
    share = (inside - knots[left]) / (knots[left + 1] - knots[left])
    hats = np.zeros((len(values), len(knots)))
    rows = np.arange(len(values))
    hats[rows, left] = 1 - share
    hats[rows, left + 1] = share
    return hats


def _answers(samples: Sequence[Sample]) -> Floats:
    """Return one column for each form of answer, 1 if the prompt asks for it."""
    return np.array([[float(sample.features.answer == form) for form in ANSWER_FORMS] for sample in samples])


def _curve_penalty(knots: int, stiffness: float) -> Floats:
    """Return the penalty on the steps between knots and on the changes of those steps (bends)."""
    steps = np.diff(np.eye(knots), axis=0)
    bends = np.diff(np.eye(knots), n=2, axis=0) if knots > 2 else np.zeros((0, knots))
    penalty: Floats = stiffness * (knots * steps.T @ steps + bends.T @ bends)
    return penalty


def _block_diagonal(blocks: Sequence[Floats]) -> Floats:
    size = sum(len(block) for block in blocks)
    whole = np.zeros((size, size))
    start = 0
    for block in blocks:
        whole[start : start + len(block), start : start + len(block)] = block
        start += len(block)
    return whole


def _rounded(values: Floats) -> tuple[float, ...]:
    """Return floats with DECIMALS decimals and no negative zero."""
    return tuple(round(float(value), DECIMALS) + 0.0 for value in values)
