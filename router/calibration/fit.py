"""Fit a gain model: ridge regressions on landmarks (Nystroem), n-grams and pieces, in closed form, in seconds.

Each source counts the same in all, however many prompts it has. The weight of the penalty is chosen by cross-validation
inside the data that is fitted, so a model that is scored on other data was not chosen on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from router.calibration.apgr import apgr
from router.calibration.outcomes import Outcome
from router.difficulty.features import features
from router.difficulty.gain_model import CLIP, GainModel, Indices, Inputs, Knots, expected_gains, kernel
from router.difficulty.pieces import Floats, Pieces

Doubles = NDArray[np.float64]

LANDMARKS: Final = 512
"""More are no better, and a prompt is compared with each of them."""
WIDTH: Final = 1.0
"""Of the kernel, in units of one over the mean squared distance of two prompts."""
GRAM_WEIGHT: Final = 0.4
"""How much the n-grams count against the landmarks and the pieces."""
KNOTS: Final = 5
TAILS: Final = 0.02
"""This share of the values at either end is beyond the outermost knots."""
RIDGES: Final = (5e-4, 1e-3, 2e-3)
"""Weights of the penalty to choose from, for the gain."""
KIND_RIDGE: Final = 3e-4
"""Of the kinds: a prompt's kind is known without noise."""
INNER_FOLDS: Final = 3
QUANTILES: Final = 201
ROUNDING: Final = 1e-5
"""A number that differs by less between prompts, of one of about 1, is the same in all."""
DRAWS: Final = 500
"""Of a bootstrap: its standard error is right to 3%."""
JITTER: Final = 1e-5
"""Keeps the kernel matrix of the landmarks invertible."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Outcomes with the features of their prompts."""

    piece_means: Floats
    """(samples, dimensions): what the kernel compares."""
    learned: Floats
    """(samples, any): what the learned numbers of a piece are made from; means over the pieces."""
    forms: Floats
    grams: Floats
    gains: Floats
    sources: NDArray[np.str_]
    counts: Floats
    """How much each counts against the others of all sources; 1 for most."""
    groups: Indices
    """Prompts of one group are never on both sides of a cross-validation."""

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], pieces: Pieces) -> Samples:
        """Return the samples of outcomes. They learn from the learned numbers of the pieces as they are."""
        found = [features(outcome.prompt, pieces) for outcome in outcomes]
        means = np.array([one.pieces for one in found])
        embedded = means.shape[1] - pieces.learned
        keys: dict[str, int] = {}
        return cls(
            piece_means=means[:, :embedded],
            learned=means[:, embedded:],
            forms=np.array([one.form for one in found]),
            grams=np.array([one.grams for one in found]),
            gains=np.array([outcome.gain for outcome in outcomes], np.float32),
            sources=np.array([outcome.source for outcome in outcomes]),
            counts=np.array([outcome.weight for outcome in outcomes], np.float32),
            groups=np.array([keys.setdefault(outcome.group, len(keys)) for outcome in outcomes]),
        )

    def __len__(self) -> int:
        return len(self.gains)

    def part(self, indices: Indices) -> Samples:
        """Return some of the samples."""
        names = ("piece_means", "learned", "forms", "grams", "gains", "sources", "counts", "groups")
        return replace(self, **{name: getattr(self, name)[indices] for name in names})

    def told_apart(self) -> int:
        """Return how many of the prompts can be told apart by their features."""
        seen = np.concatenate([self.piece_means, self.learned, self.forms, self.grams], axis=1)
        return len(np.unique(seen, axis=0))

    def weights(self) -> Floats:
        """Return the weight of each sample; each source's add up to the same but for `counts`, all to 1."""
        names, places, counts = np.unique(self.sources, return_inverse=True, return_counts=True)
        weights: Floats = (self.counts / (counts[places] * len(names))).astype(np.float32)
        weights /= weights.sum()
        return weights

    def mean_gain(self) -> tuple[float, float]:
        """Return the mean gain, and its standard error: groups are independent, the prompts of one are not."""
        weights = self.weights()
        mean = float(weights @ self.gains)
        by_group = np.bincount(self.groups, weights * (self.gains - mean))
        return mean, float(np.sqrt((by_group**2).sum()))

    def folds(self, count: int, seed: int) -> Iterator[tuple[Indices, Indices]]:
        """Yield the indices to train on and those left out, for each fold; groups stay together."""
        drawn = np.random.default_rng(seed).random(int(self.groups.max()) + 1)
        fold = (drawn[self.groups] * count).astype(int)
        for number in range(count):
            if (fold == number).any() and (fold != number).any():
                yield np.flatnonzero(fold != number), np.flatnonzero(fold == number)


@dataclass(frozen=True, slots=True)
class Fitted:
    """Ridge regressions that were fitted, one an output: the gain, then each kind."""

    design: _Design
    coefficients: Floats
    """(columns, outputs)."""
    base: Floats
    """(outputs,)."""
    kind_gains: Floats
    """(kinds,)."""

    def gains(self, samples: Samples) -> Floats:
        """Return the expected gains of samples."""
        return expected_gains(self.design.columns(samples) @ self.coefficients + self.base, self.kind_gains)

    def learned(self) -> Floats:
        """Return the coefficients of `Samples.learned` as they are, unscaled: (learned, outputs)."""
        coefficients: Floats = self.coefficients[-len(self.design.learned_mean) :] / self.design.learned_scale
        return coefficients

    def model(self, samples: Samples, unseen: Floats, numbers: Floats, piece_weights: Floats) -> GainModel:
        """Return the model of it.

        Args:
            samples: the reference mix.
            unseen: expected gains of the samples by regressions that did not see them, as in `cross_validated`: those
                of the samples' own regressions spread wider than the gains of new prompts.
            numbers: how the learned numbers of the pieces are made from `Samples.learned`: (learned, numbers).
            piece_weights: of these numbers: (numbers, outputs).
        """
        design, count = self.design, len(self.design.landmarks)
        gram_weights = self.coefficients[count : count + samples.grams.shape[1]] * GRAM_WEIGHT / design.gram_scale
        shift = design.gram_mean @ gram_weights + design.learned_mean @ numbers @ piece_weights
        return GainModel(
            inputs=design.inputs,
            landmarks=design.landmarks,
            width=design.width,
            weights=(design.whitening @ self.coefficients[:count]).astype(np.float32),
            gram_weights=gram_weights.astype(np.float32),
            piece_weights=piece_weights.astype(np.float32),
            base=(self.base - shift).astype(np.float32),
            kind_gains=self.kind_gains,
            quantiles=_quantiles(unseen, samples.weights()),
        )


def fit(samples: Samples, ridge: float | None = None, seed: int = 0) -> Fitted:
    """Return the regressions on the samples.

    Args:
        samples: to learn from.
        ridge: weight of the gain's penalty; None: chosen by cross-validation inside of the samples.
        seed: of what is drawn.
    """
    design = _Design.of(samples, seed)
    sources, kinds = np.unique(samples.sources, return_inverse=True)
    fits = np.eye(len(sources), dtype=np.float32)[kinds]
    sums = _Sums.of(design.columns(samples), samples, np.concatenate([samples.gains[:, None], fits], axis=1))
    gain = sums.solve(ridge or best_ridge(samples, design, seed))[:, :1]
    solved = np.concatenate([gain, sums.solve(KIND_RIDGE)[:, 1:]], axis=1).astype(np.float32)
    return Fitted(design, solved[:-1], solved[-1], (samples.gains @ fits / fits.sum(0)).astype(np.float32))


def best_ridge(samples: Samples, design: _Design, seed: int = 0) -> float:
    """Return the weight of the penalty with which left-out prompts are ordered best.

    Where the strong model gains nothing over all samples no order is best; it is the middle one then.
    """
    if float(samples.weights() @ samples.gains) <= 0:
        return RIDGES[len(RIDGES) // 2]
    columns = design.columns(samples)
    folds = list(samples.folds(INNER_FOLDS, seed + 1))
    gains = samples.gains[:, None]
    parts = [_Sums.of(columns[left_out], samples.part(left_out), gains[left_out]) for _, left_out in folds]
    scores = np.zeros((len(RIDGES), len(samples)), np.float32)
    for number, (_, left_out) in enumerate(folds):
        seen = _Sums.mean([part for other, part in enumerate(parts) if other != number])
        for row, ridge in enumerate(RIDGES):
            solved = seen.solve(ridge)[:, 0]
            scores[row, left_out] = columns[left_out] @ solved[:-1] + solved[-1]
    return max(zip(RIDGES, scores, strict=True), key=lambda pair: quality(pair[1], samples))[0]


def quality(scores: Floats, samples: Samples) -> float:
    """Return the APGR of the mix; sources weigh the same.

    Raises:
        ValueError: the strong model gains nothing over all.
    """
    return apgr(scores.tolist(), samples.gains.tolist(), samples.weights().tolist())


def standard_error(before: Floats, after: Floats, samples: Samples, draws: int = DRAWS, seed: int = 0) -> float:
    """Return the standard error of `quality(after) - quality(before)`, by a bootstrap over the groups.

    The whole gain stays that of the samples: it only scales the difference, and can be nothing in a draw.

    Raises:
        ValueError: the strong model gains nothing over all.
    """
    weights = samples.weights()
    if (total := float(weights @ samples.gains)) <= 0:
        raise ValueError(f"the strong model must gain over the weak one, gained {total} over {len(samples)} prompts")
    groups, places = np.unique(samples.groups, return_inverse=True)
    ranks = [np.unique(scores, return_inverse=True)[1] for scores in (before, after)]
    rng = np.random.default_rng(seed)
    differences = []
    for _ in range(draws):
        drawn = np.bincount(rng.integers(len(groups), size=len(groups)), minlength=len(groups))
        mix = weights * drawn[places]
        mix /= mix.sum()
        old, new = (_gain_by_rank(rank, mix, samples.gains) for rank in ranks)
        differences.append((new - old) / total)
    return float(np.std(differences, ddof=1))


def _gain_by_rank(ranks: Indices, weights: Floats, gains: Floats) -> float:
    """Return the area under the curve of `apgr`, before it is divided by the whole gain: each prompt's gain counts as
    often as its score is higher than others' (a half for those of the same score)."""
    counts = np.bincount(ranks, weights)
    lower = np.cumsum(counts) - counts / 2
    return float((weights * gains) @ lower[ranks])


def cross_validated(samples: Samples, count: int, seed: int) -> Floats:
    """Return the expected gain of each sample, by a regression that saw neither it nor its group."""
    gains = np.zeros(len(samples), np.float32)
    for seen, left_out in samples.folds(count, seed):
        gains[left_out] = fit(samples.part(seen), seed=seed).gains(samples.part(left_out))
    return gains


@dataclass(frozen=True, slots=True)
class _Design:
    """How samples become the columns of the regression."""

    inputs: Inputs
    landmarks: Floats
    width: float
    whitening: Doubles
    gram_mean: Floats
    gram_scale: float
    learned_mean: Floats
    learned_scale: float

    @classmethod
    def of(cls, samples: Samples, seed: int) -> _Design:
        inputs = _inputs(samples)
        vectors = inputs.vectors(samples.piece_means, samples.forms)
        drawn = np.random.default_rng(seed).choice(len(vectors), min(LANDMARKS, len(vectors)), replace=False)
        landmarks = vectors[drawn].astype(np.float16).astype(np.float32)  # as they are stored
        width = WIDTH / (2 * _spread(vectors) ** 2)
        between = kernel(landmarks, landmarks, width).astype(np.float64)
        values, axes = np.linalg.eigh(between + JITTER * len(landmarks) * np.eye(len(landmarks)))
        return cls(
            inputs=inputs,
            landmarks=landmarks,
            width=width,
            whitening=axes / np.sqrt(values) @ axes.T,
            gram_mean=samples.grams.mean(0),
            gram_scale=_spread(samples.grams),
            learned_mean=samples.learned.mean(0),
            learned_scale=_spread(samples.learned),
        )

    def columns(self, samples: Samples) -> Floats:
        vectors = self.inputs.vectors(samples.piece_means, samples.forms)
        return np.concatenate(
            [
                kernel(vectors, self.landmarks, self.width) @ self.whitening.astype(np.float32),
                GRAM_WEIGHT * (samples.grams - self.gram_mean) / self.gram_scale,
                (samples.learned - self.learned_mean) / self.learned_scale,
            ],
            axis=1,
        )


@dataclass(frozen=True, slots=True)
class _Sums:
    """Weighted means over samples from which the coefficients follow."""

    squares: Doubles
    """(columns + 1, columns + 1), the last for the base."""
    products: Doubles
    """(columns + 1, outputs)."""

    @classmethod
    def of(cls, columns: Floats, samples: Samples, targets: Floats) -> _Sums:
        whole = np.concatenate([columns, np.ones((len(columns), 1), np.float32)], axis=1)
        weighted = whole * samples.weights()[:, None]
        return cls((whole.T @ weighted).astype(np.float64), (weighted.T @ targets).astype(np.float64))

    @classmethod
    def mean(cls, parts: Sequence[_Sums]) -> _Sums:
        return cls(
            np.mean([part.squares for part in parts], axis=0), np.mean([part.products for part in parts], axis=0)
        )

    def solve(self, ridge: float) -> Doubles:
        """Return the coefficients, the last of each output its base: (columns + 1, outputs)."""
        penalty = np.full(len(self.products), ridge)
        penalty[-1] = 0
        return np.linalg.solve(self.squares + np.diag(penalty), self.products)


def _inputs(samples: Samples) -> Inputs:
    form_mean, form_deviation = samples.forms.mean(0), samples.forms.std(0) + 1e-6
    form_deviation[form_deviation < ROUNDING * (1 + np.abs(form_mean))] = 1
    standard = np.clip((samples.forms - form_mean) / form_deviation, -CLIP, CLIP)
    steps = np.linspace(TAILS, 1 - TAILS, KNOTS)
    places = [np.unique(np.quantile(column, steps).astype(np.float32)) for column in standard.T]
    numbers = np.repeat(np.arange(len(places)), [len(ends) for ends in places])
    knots = Knots(numbers, np.concatenate(places))
    shares = knots.curves(standard)
    return Inputs(
        piece_mean=samples.piece_means.mean(0),
        piece_scale=_spread(samples.piece_means),
        form_mean=form_mean,
        form_deviation=form_deviation,
        form_scale=_spread(standard),
        knots=knots,
        curve_mean=shares.mean(0),
        curve_scale=_spread(shares),
    )


def _spread(values: Floats) -> float:
    """Return the root of the mean squared distance from the mean; 1 where it is nothing, which magnifies nothing."""
    spread = float(np.sqrt(((values - values.mean(0)) ** 2).sum(1).mean())) + 1e-6
    return spread if spread > ROUNDING else 1.0


def _quantiles(gains: Floats, weights: Floats) -> Floats:
    order = np.argsort(gains)
    shares = np.cumsum(weights[order]) - weights[order] / 2
    return np.interp(np.linspace(0, 1, QUANTILES), shares, gains[order]).astype(np.float32)
