"""What a strong model is expected to gain over a weak one on a prompt, learned from outcomes of many sources.

The mean of two estimates. One is a ridge regression of the gain. The other asks of which kind the prompt is (a kind is
a source of the training data: mathematics of a contest, users' requests in Japanese), by a ridge regression for each
kind, and takes the mean gain of the likely kinds. Within a kind outcomes are noisy, between kinds they are not: the
first knows more of the one, the second of the other.

All regressions see three parts: how like a prompt is to each of a few hundred landmarks (prompts of the training data
as numbers); its character n-grams; and a few learned numbers for each piece of a word, of which the mean counts. They
are fitted in `router/calibration/fit.py`. `quantiles` turn an expected gain into the share of the reference mix that
gains less, so that a score means the same whatever the scale.
"""

from __future__ import annotations

import zipfile
import zlib
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import inf
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from router.difficulty.features import FORM, GRAMS, features
from router.difficulty.pieces import Floats, Pieces, load_pieces
from router.errors import ConfigError

Indices = NDArray[np.int64]

GAIN_MODEL_FILE: Final = Path(__file__).with_name("gain_model.npz")
CLIP: Final = 4.0
"""Standard deviations beyond which a number of the form counts no more."""
FORM_WEIGHT: Final = 0.7
KNOTS_WEIGHT: Final = 0.5
"""How much the form, and its curves, count against the pieces' mean vector."""
SHARPNESS: Final = 24.0
"""How sure a difference between two kinds is: their odds are e to the power of this times it."""


@dataclass(frozen=True)
class Knots:
    """The knots of the form's curves, one row a knot: those of a number rise and follow each other."""

    number: Indices
    """Which number of the form a knot belongs to."""
    place: Floats
    """In standard deviations."""

    @cached_property
    def _slopes(self) -> tuple[Floats, Floats]:
        """By how much a height falls towards the knot before (negative) and the one after; 0 where there is none."""
        steps = np.where(np.diff(self.number) == 0, 1 / np.maximum(np.diff(self.place), 1e-6), 0).astype(np.float32)
        end = np.zeros(1, np.float32)
        return -np.concatenate([end, steps]), np.concatenate([steps, end])

    def curves(self, standard: Floats) -> Floats:
        """Return the share of each knot's height at each value: (texts, knots); those of a number add up to 1."""
        before, after = self._slopes
        distance = standard[:, self.number] - self.place
        return _within(1 - np.maximum(distance * before, distance * after), 0, 1)


@dataclass(frozen=True, slots=True)
class Inputs:
    """How the numbers of a text become the vector that the kernel compares."""

    piece_mean: Floats
    piece_scale: float
    form_mean: Floats
    form_deviation: Floats
    form_scale: float
    knots: Knots
    curve_mean: Floats
    curve_scale: float

    def vectors(self, piece_means: Floats, forms: Floats) -> Floats:
        """Return the vectors of texts: (texts, inputs)."""
        standard = _within((forms - self.form_mean) / self.form_deviation, -CLIP, CLIP)
        vectors: Floats = np.concatenate(
            [
                (piece_means - self.piece_mean) / self.piece_scale,
                FORM_WEIGHT * standard / self.form_scale,
                KNOTS_WEIGHT * (self.knots.curves(standard) - self.curve_mean) / self.curve_scale,
            ],
            axis=1,
        ).astype(np.float32)
        return vectors


def _within(values: Floats, low: float, high: float) -> Floats:
    """Return what `np.clip` does, which takes several times as long for few values."""
    clipped: Floats = np.minimum(np.maximum(values, np.float32(low)), np.float32(high))
    return clipped


def kernel(vectors: Floats, landmarks: Floats, width: float) -> Floats:
    """Return exp(-width * squared distance): (vectors, landmarks)."""
    squared = (vectors**2).sum(1)[:, None] + (landmarks**2).sum(1)[None] - 2 * vectors @ landmarks.T
    similar: Floats = np.exp(-width * np.maximum(squared, 0))
    return similar


def expected_gains(outputs: Floats, kind_gains: Floats) -> Floats:
    """Return the expected gains: (texts,).

    Args:
        outputs: of the regressions: the gain, then how well each kind fits; (texts, 1 + kinds).
        kind_gains: mean gain of each kind; a single one says nothing.
    """
    gains: Floats = outputs[:, 0]
    if len(kind_gains) < 2:
        return gains
    fits = outputs[:, 1:]
    odds = np.exp(SHARPNESS * (fits - fits.max(axis=1, keepdims=True)))
    means: Floats = (gains + odds @ kind_gains / odds.sum(axis=1)) / 2
    return means


@dataclass(frozen=True)
class GainModel:
    """A fitted model. Its outputs are those of `expected_gains`."""

    inputs: Inputs
    landmarks: Floats
    """(landmarks, inputs)."""
    width: float
    """Of the kernel."""
    weights: Floats
    """(landmarks, outputs)."""
    gram_weights: Floats
    """(kinds of n-grams, outputs)."""
    piece_weights: Floats
    """(learned numbers of the pieces, outputs)."""
    base: Floats
    """(outputs,)."""
    kind_gains: Floats
    """(kinds,)."""
    quantiles: Floats
    """Rising expected gains of the reference mix, at equal steps of its share from 0 to 1."""

    def gain(self, text: str, pieces: Pieces | None = None) -> float:
        """Return the expected gain of a text (the strong model's score less the weak one's, 0-1)."""
        found = features(text, pieces or load_pieces())
        embedded, learned = np.split(found.pieces, [len(self.inputs.piece_mean)])
        vector = self.inputs.vectors(embedded[None], found.form[None])[0]
        squared = self._norms + vector @ vector - 2 * (self.landmarks @ vector)
        outputs = np.exp(-self.width * np.maximum(squared, 0)) @ self.weights
        outputs += found.grams @ self.gram_weights + learned @ self.piece_weights + self.base
        return float(expected_gains(outputs[None], self.kind_gains)[0])

    @cached_property
    def _norms(self) -> Floats:
        norms: Floats = (self.landmarks**2).sum(1)
        return norms

    def score(self, text: str) -> float:
        """Return the share of the reference mix (0-1) that is expected to gain less than this text."""
        return self.share_below(self.gain(text))

    def share_below(self, gain: float) -> float:
        """Return the share of the reference mix (0-1) that is expected to gain less."""
        rising = self._rising
        place = bisect_right(rising, gain)
        if place in (0, len(rising)):
            return float(place > 0)
        low, high = rising[place - 1 : place + 1]
        return (place - 1 + (gain - low) / (high - low)) / (len(rising) - 1)

    @cached_property
    def _rising(self) -> list[float]:
        rising: list[float] = self.quantiles.tolist()
        return rising

    def save(self, path: Path) -> None:
        """Write the model; the same model gives the same bytes.

        Raises:
            ConfigError: it is none that `load` would take, or the file cannot be written.
        """
        if problem := self._problem():
            raise ConfigError(f"{path}: not written, since the fitted model is none: {problem}")
        arrays = self._arrays() | {"landmarks": self.landmarks.astype(np.float16)}
        try:
            np.savez_compressed(path, **arrays)  # type: ignore[arg-type]  # its stub takes only ** of one type
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error

    @classmethod
    def load(cls, path: Path) -> GainModel:
        """Return the model of a file.

        Raises:
            ConfigError: the file is missing or no gain model.
        """
        no_model = f"auto.gain_model: {path} is no gain model of `power-lever calibrate`"
        arrays = _read_arrays(path, no_model)
        missing = [name for name in _ARRAYS if name not in arrays]
        if missing:
            raise ConfigError(f"{no_model}: it has no {missing[0]}")
        for name in _ARRAYS:
            kind, dimensions = arrays[name].dtype.kind, arrays[name].ndim
            if kind not in "fiu" or dimensions != (2 if name in _TABLES else 1):
                raise ConfigError(f"{no_model}: {name} has {dimensions} dimensions of type {arrays[name].dtype}")
        if len(arrays["scalars"]) != 4:
            raise ConfigError(f"{no_model}: scalars has {len(arrays['scalars'])} numbers, not 4")
        piece_scale, form_scale, curve_scale, width = map(float, arrays["scalars"])
        inputs = Inputs(
            piece_mean=arrays["piece_mean"],
            piece_scale=piece_scale,
            form_mean=arrays["form_mean"],
            form_deviation=arrays["form_deviation"],
            form_scale=form_scale,
            knots=Knots(arrays["knot_number"], arrays["knot_place"]),
            curve_mean=arrays["curve_mean"],
            curve_scale=curve_scale,
        )
        landmarks = arrays["landmarks"].astype(np.float32)
        names = ("weights", "gram_weights", "piece_weights", "base", "kind_gains", "quantiles")
        weights, gram_weights, piece_weights, base, kind_gains, quantiles = (arrays[name] for name in names)
        model = cls(inputs, landmarks, width, weights, gram_weights, piece_weights, base, kind_gains, quantiles)
        if not model._fits():
            raise ConfigError(_ANOTHER_VERSION.format(path))
        if problem := model._problem():
            raise ConfigError(f"{no_model}: {problem}")
        return model

    def _fits(self) -> bool:
        """Return whether the sizes fit each other and the features of this version."""
        inputs, outputs = self.inputs, 1 + len(self.kind_gains)
        knots = len(inputs.knots.place)
        numbers = inputs.knots.number
        return (
            inputs.form_mean.shape == inputs.form_deviation.shape == (len(FORM),)
            and numbers.shape == inputs.curve_mean.shape == (knots,)
            and numbers.dtype.kind in "iu"
            and bool(((numbers >= 0) & (numbers < len(FORM))).all())
            and self.landmarks.shape[1] == len(inputs.piece_mean) + len(FORM) + knots
            and self.weights.shape == (len(self.landmarks), outputs)
            and self.gram_weights.shape == (GRAMS, outputs)
            and self.piece_weights.shape[1:] == self.base.shape == (outputs,)
        )

    def _arrays(self) -> dict[str, NDArray[Any]]:
        """Return the model's numbers by their names in a file."""
        inputs = self.inputs
        scalars = (inputs.piece_scale, inputs.form_scale, inputs.curve_scale, self.width)
        return {
            "piece_mean": inputs.piece_mean,
            "form_mean": inputs.form_mean,
            "form_deviation": inputs.form_deviation,
            "curve_mean": inputs.curve_mean,
            "knot_number": inputs.knots.number,
            "knot_place": inputs.knots.place,
            "scalars": np.array(scalars, np.float32),
            "landmarks": self.landmarks,
            "weights": self.weights,
            "gram_weights": self.gram_weights,
            "piece_weights": self.piece_weights,
            "base": self.base,
            "kind_gains": self.kind_gains,
            "quantiles": self.quantiles,
        }

    def _problem(self) -> str | None:
        """Return why nothing can be rated with these numbers, or None."""
        inputs = self.inputs
        scales = (inputs.piece_scale, inputs.form_scale, inputs.curve_scale, self.width, *inputs.form_deviation)
        for name, values in self._arrays().items():
            if name != "scalars" and not np.isfinite(values).all():
                return f"{name} has numbers that are not finite"
        if not all(0 < scale < inf for scale in scales):
            return "a scale is not a finite number above 0"
        if len(self.quantiles) < 2 or (np.diff(self.quantiles) < 0).any() or self.quantiles[0] == self.quantiles[-1]:
            return "the quantiles do not rise"
        return None


_ANOTHER_VERSION: Final = "auto.gain_model: {} was made by another version; run `power-lever calibrate` again"
_TABLES: Final = frozenset({"landmarks", "weights", "gram_weights", "piece_weights"})
"""The arrays of two dimensions; the others have one."""
_ARRAYS: Final = (
    *("scalars", "piece_mean", "form_mean", "form_deviation", "curve_mean", "knot_number", "knot_place"),
    *sorted(_TABLES),
    *("base", "kind_gains", "quantiles"),
)
"""What a file must have."""


def _read_arrays(path: Path, no_model: str) -> dict[str, NDArray[Any]]:
    """Return what is in a file.

    Raises:
        ConfigError: it is missing, cannot be read, or holds something else; the message begins with `no_model`.
    """
    try:
        if not path.is_file():  # opening a named pipe would wait
            raise ConfigError(f"{no_model}: {'it is not a file' if path.exists() else 'there is no such file'}")
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise ConfigError(f"{no_model}: it is not an .npz file")
            file.seek(0)
            with np.load(file, allow_pickle=False) as stored:
                return {name: np.asarray(stored[name]) for name in stored.files if name in _ARRAYS}
    except OSError as error:
        raise ConfigError(f"{no_model}: it cannot be read: {error.strerror or error}") from error
    except ConfigError:
        raise
    # RuntimeError: a zip file that is encrypted, or compressed in another way.
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        raise ConfigError(f"{no_model}: it is damaged, or was made by something else") from error


@lru_cache(maxsize=4)
def load_gain_model(path: str | None = None) -> GainModel:
    """Return the model of a file, or the shipped one; the first call of a process reads it.

    Raises:
        ConfigError: the file is missing or no gain model.
    """
    model, pieces = GainModel.load(GAIN_MODEL_FILE if path is None else Path(path)), load_pieces()
    sizes = (len(model.inputs.piece_mean) + len(model.piece_weights), len(model.piece_weights))
    if sizes != (pieces.vectors.shape[1], pieces.learned):
        raise ConfigError(_ANOTHER_VERSION.format(path))
    return model
