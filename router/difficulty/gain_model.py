"""The learned part: how much a strong model is expected to gain over a weak one, by the form of a prompt.

The model is additive. Each feature (`features.py`) adds what its curve says, with straight lines between a few knots,
and the form of the answer adds a number. So its parts are its reasons. `python -m bench.train_router` trains it and
writes `gain_model.yaml`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import yaml
from pydantic import Field, model_validator

from router.difficulty.features import AnswerForm, Features
from router.registry import Frozen

POINTS_PER_GAIN = 40.0
"""Points of difficulty per unit of expected gain, before they are bounded: a prompt is one point harder if the strong
model is expected to answer two or three more of 100 such prompts. Our own choice, like the numbers below."""
MOST_ADDED = 4.0
"""The model adds less than so many points of difficulty; it approaches them like tanh, which keeps the order."""
MOST_TAKEN = 2.0
"""The same for what it takes away: an answer from too small a model costs more than one from too large a model."""
PLAIN_GAIN = -0.03
"""Expected gain (over that of all prompts) at which nothing is added: about that of plain prose, for which the rules
were made. It keeps the mean difficulty of the training prompts at what the rules alone give."""
FADE_WORDS = (8, 30)
"""A text of so few words has no form, so the model says nothing; from so many on it counts in full."""
MOST_REASONS = 3
LEAST_REASON = 0.25
"""A part of fewer points is no reason."""

GAIN_MODEL_FILE = Path(__file__).with_name("gain_model.yaml")
FEATURES: tuple[str, ...] = tuple(name for name in Features._fields if name != "answer")
"""The features that have a curve, in the order of `Features`."""

_FEATURE_TEXTS: dict[str, str] = {
    "word_length": "{:.1f} letters a word",
    "short_words": "{:.0%} short words",
    "function_words": "{:.0%} function words",
    "digits": "{:.0%} digits",
    "numbers": "{:.0f} numbers",
    "symbols": "{:.0%} symbols",
    "operators": "{:.0f} operators",
    "lines": "{:.0f} lines",
    "options": "{:.0f} options",
}
_LOGARITHMS = frozenset(("numbers", "operators", "lines"))
"""Features that are log2(1 + count), shown as the count."""
_ANSWER_TEXTS: dict[AnswerForm, str] = {
    "either_or": "asks for one of a few options",
    "choice": "asks for one of many options",
    "code": "asks for code",
    "text": "asks for text",
}


class Curve(Frozen):
    """What a feature adds to the expected gain: straight between the knots, flat beyond them."""

    knots: tuple[float, ...] = Field(min_length=1, description="Values of the feature, rising.")
    gains: tuple[float, ...] = Field(description="What it adds at each knot.")

    @model_validator(mode="after")
    def _fit(self) -> Curve:
        if len(self.knots) != len(self.gains) or list(self.knots) != sorted(set(self.knots)):
            raise ValueError("knots must rise, and each must have one gain")
        return self

    def at(self, value: float) -> float:
        """Return what a value of the feature adds."""
        right = bisect_right(self.knots, value)
        if right == 0:
            return self.gains[0]
        if right == len(self.knots):
            return self.gains[-1]
        x0, x1 = self.knots[right - 1], self.knots[right]
        y0, y1 = self.gains[right - 1], self.gains[right]
        return y0 + (y1 - y0) * (value - x0) / (x1 - x0)


class LearnedShift(NamedTuple):
    """What the model makes of a text."""

    points: float
    """Points of difficulty to add, from -MOST_TAKEN to MOST_ADDED."""
    reasons: tuple[str, ...]
    """Its strongest parts in the same direction, strongest first; they have numbers, no words of the text."""


class GainModel(Frozen):
    """The curves and what each form of answer adds."""

    curves: dict[str, Curve] = Field(description="By feature, in the order of `Features`.")
    answers: dict[AnswerForm, float] = Field(description="By form of answer.")

    @model_validator(mode="after")
    def _complete(self) -> GainModel:
        if tuple(self.curves) != FEATURES:
            raise ValueError(f"curves must be {list(FEATURES)} in this order, got {list(self.curves)}")
        return self

    def parts(self, text: Features) -> list[float]:
        """Return what each feature adds to the expected gain, in the order of `Features`."""
        parts = [curve.at(value) for curve, value in zip(self.curves.values(), text[:-1], strict=True)]
        parts.append(self.answers.get(text.answer, 0.0))
        return parts

    def gain(self, text: Features) -> float:
        """Return the expected gain of the strong model over the weak one, less the mean of all prompts."""
        return sum(self.parts(text))

    def shift(self, text: Features, words: int) -> LearnedShift:
        """Return the points of difficulty for a text of so many words, and why."""
        low, high = FADE_WORDS
        share = min(1.0, max(0.0, (words - low) / (high - low)))
        if share == 0.0:
            return LearnedShift(0.0, ())
        parts = self.parts(text)
        gain = sum(parts) - PLAIN_GAIN
        if gain == 0.0:
            return LearnedShift(0.0, ())
        most = MOST_ADDED if gain > 0 else MOST_TAKEN
        points = share * most * math.tanh(gain * POINTS_PER_GAIN / most)
        return LearnedShift(points, _reasons(text, [part * points / gain for part in parts], points))


@lru_cache(maxsize=1)
def load_gain_model() -> GainModel:
    """Return the trained model; the first call of a process reads it from the file."""
    return GainModel.model_validate(yaml.safe_load(GAIN_MODEL_FILE.read_text(encoding="utf-8")))


def _reasons(text: Features, points: list[float], total: float) -> tuple[str, ...]:
    """Return the strongest parts in the direction of the total, each with its share of the total's points."""
    same_way = [(abs(part), field) for field, part in enumerate(points) if part * total > 0]
    strongest = sorted((pair for pair in same_way if pair[0] >= LEAST_REASON), key=lambda pair: (-pair[0], pair[1]))
    return tuple(f"{_in_words(text, field)} ({points[field]:+.1f})" for _, field in strongest[:MOST_REASONS])


def _in_words(text: Features, field: int) -> str:
    name = Features._fields[field]
    if name == "answer":
        return _ANSWER_TEXTS[text.answer]
    value = text[:-1][field]
    return _FEATURE_TEXTS[name].format(2**value - 1 if name in _LOGARITHMS else value)
