"""A small learned model: how much a strong model is likely to gain over a weak one, from the form of a prompt.

Additive: each feature of `router.difficulty.surface` adds what its curve says, straight lines between a few knots; the
form of answer adds a number of its own. So the model's reasons are its parts, and the strongest of them can be told. It
is trained by `python -m bench.train_router`, which writes `router/difficulty/gain_curves.py`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

from router.difficulty.answer_form import AnswerForm
from router.difficulty.surface import Surface

POINTS_PER_GAIN = 40.0
"""Points of difficulty per unit of expected gain, before they are bounded: a prompt is one point harder where the
strong model is expected to answer two or three more of 100 such prompts. Our own choice, as are the numbers below."""
MOST_ADDED = 4.0
"""The model adds less than so many points of difficulty; it nears them as tanh does, which keeps the order."""
MOST_TAKEN = 2.0
"""The same for what it takes away: an answer from too small a model costs more than one from too large a one."""
PLAIN_GAIN = -0.03
"""Expected gain (over that of all prompts) at which nothing is added: about that of plain prose, which the rules were
made for. With it the mean difficulty of the prompts that the model was trained on stays what the rules alone say."""
FADE_WORDS = (8, 30)
"""Up to so many words a text has no form to speak of and the model says nothing; from so many on it says all."""
REASONS = 3
"""How many reasons are told, at most."""
LEAST_REASON = 0.25
"""A part of fewer points is no reason."""

FEATURES: tuple[str, ...] = tuple(name for name in Surface._fields if name != "answer")
"""The features that have a curve, as `Surface` orders them."""

_NAMES: dict[str, str] = {
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
"""Features that are log2(1 + count), told as the count."""
_ANSWER_NAMES: dict[AnswerForm, str] = {
    "either_or": "asks for one of a few options",
    "choice": "asks for one of many options",
    "code": "asks for code",
    "text": "asks for text",
}


@dataclass(frozen=True, slots=True)
class Curve:
    """What a feature adds to the expected gain: straight between the knots, flat beyond them."""

    knots: tuple[float, ...]
    """Values of the feature, rising; at least one."""
    gains: tuple[float, ...]
    """What it adds at the knots."""

    def at(self, value: float) -> float:
        """What a value of the feature adds."""
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
    """Its strongest parts that point the same way, strongest first; numbers of the text's form, none of its words."""


@dataclass(frozen=True, slots=True)
class GainModel:
    """The curves, in the order of FEATURES, and what each form of answer adds."""

    curves: tuple[Curve, ...]
    answers: tuple[tuple[AnswerForm, float], ...]

    def parts(self, text: Surface) -> list[float]:
        """What each feature adds to the expected gain over the mean, in the order of `Surface`; the answer last."""
        parts = [curve.at(value) for curve, value in zip(self.curves, text[:-1], strict=True)]
        parts.append(next((gain for form, gain in self.answers if form == text.answer), 0.0))
        return parts

    def gain(self, text: Surface) -> float:
        """Expected gain of the strong model over the weak one, less the mean of all prompts."""
        return sum(self.parts(text))

    def shift(self, text: Surface, words: int) -> LearnedShift:
        """Points of difficulty for a text of so many words, and why."""
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


def _reasons(text: Surface, points: list[float], total: float) -> tuple[str, ...]:
    """The strongest parts that point where the total points; each told with its share of the total's points."""
    told = [(abs(part), field) for field, part in enumerate(points) if part * total > 0]
    strongest = sorted((pair for pair in told if pair[0] >= LEAST_REASON), key=lambda pair: (-pair[0], pair[1]))
    return tuple(f"{_told(text, field)} ({points[field]:+.1f})" for _, field in strongest[:REASONS])


def _told(text: Surface, field: int) -> str:
    name = Surface._fields[field]
    if name == "answer":
        return _ANSWER_NAMES[text.answer]
    value = text[:-1][field]
    return _NAMES[name].format(2**value - 1 if name in _LOGARITHMS else value)
