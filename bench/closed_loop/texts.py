"""Texts for the closed loop: where each of them can be drafted is fixed before any policy sees it.

Whether the draft for an output position is accepted depends on the request and the position only. So all policies are
compared on equal luck.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

LONGEST: Final = 400
"""Longest output, tokens; the shortest is an eighth of it."""

AcceptanceAt = Callable[[random.Random, int, int, int], list[float]]
"""From randomness, index of the text, number of texts and length to the acceptance at every output position."""


def steady(acceptance: float) -> AcceptanceAt:
    """Return texts of one acceptance everywhere."""
    return lambda rng, index, count, length: [acceptance] * length


def bursty(rng: random.Random, index: int, count: int, length: int) -> list[float]:
    """Copied passages of about 40 tokens (0.97) between prose of about 60 tokens (0.1)."""
    acceptance, copying = list[float](), rng.random() < 0.4
    while len(acceptance) < length:
        acceptance += [0.97 if copying else 0.1] * (1 + int(rng.expovariate(1 / (40 if copying else 60))))
        copying = not copying
    return acceptance[:length]


def rising_within(rng: random.Random, index: int, count: int, length: int) -> list[float]:
    """Every text becomes predictable in its middle."""
    return [0.2] * (length // 2) + [0.8] * (length - length // 2)


def falling_between(rng: random.Random, index: int, count: int, length: int) -> list[float]:
    """The traffic changes in the middle: later texts are hard to predict."""
    return [0.8 if 2 * index < count else 0.2] * length


def mixed(rng: random.Random, index: int, count: int, length: int) -> list[float]:
    """Texts of three kinds side by side."""
    return [(0.2, 0.5, 0.8)[index % 3]] * length


TEXTS: Final[Mapping[str, AcceptanceAt]] = {
    "0.2": steady(0.2),
    "0.5": steady(0.5),
    "0.8": steady(0.8),
    "bursty": bursty,
    "rising in text": rising_within,
    "falling traffic": falling_between,
    "mixed": mixed,
}


@dataclass(frozen=True, slots=True)
class Text:
    """One request's output, as it will be."""

    prompt: int
    """Prompt tokens."""
    length: int
    """Output tokens."""
    runs: list[int]
    """By position: how many draft tokens from there on would be accepted."""
    comes: list[bool]
    """By position: whether a draft comes at all."""


def texts(kind: AcceptanceAt, tokens: int, batch: int, k_max: int, *, ngram: bool = False, seed: int = 0) -> list[Text]:
    """Return texts of mixed lengths, about as many as make that many tokens, and some to keep the batch full."""
    made = []
    count = max(2, round(tokens / (LONGEST * 9 / 16)))
    for index in range(int(1.2 * count) + batch + 4):
        rng = random.Random(f"{seed}/{index}")
        length, prompt = rng.randint(LONGEST // 8, LONGEST), rng.randint(8, 64)
        acceptance = kind(rng, index, count, length + k_max)
        runs, run = [], 0
        for likely in reversed(acceptance):
            run = run + 1 if rng.random() < likely else 0
            runs.append(run)
        comes = [not ngram or rng.random() < (1.0 if likely > 0.4 else 0.5) for likely in acceptance]
        made.append(Text(prompt, length, runs[::-1], comes))
    return made
