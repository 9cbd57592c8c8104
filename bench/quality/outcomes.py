"""Prompts with the outcomes of a weak and a strong model, read from a file and grouped by the words that they share."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.quality.bare_prompt import bare_prompt
from bench.reporting.report import REPOSITORY

OUTCOMES: Final = REPOSITORY.parent / "shared" / "data" / "routing_outcomes.jsonl"
"""A part of RouterArena's cached results; Apache-2.0."""
SAME_WORDS = 0.6
"""Two prompts that share this part of their words are one task in two wordings, or two questions about one text."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A prompt, and how the two models answered it."""

    id: str
    prompt: str
    weak_score: float
    """0 (wrong) to 1 (right), like `strong_score`; translation scores may be slightly negative."""
    strong_score: float

    @property
    def gain(self) -> float:
        """The gain of the strong model."""
        return self.strong_score - self.weak_score

    @property
    def benchmark(self) -> str:
        """Its benchmark: the first word of its id, so that all subjects of a benchmark are together."""
        name = self.id.rpartition("_")[0] or self.id
        return name.partition("_")[0].partition("-")[0]


def read_outcomes(path: Path) -> list[Outcome]:
    """Return the outcomes of a JSON Lines file, one object a line; other keys are ignored.

    Raises:
        ValueError: a line is no such object; the message names the first.
        OSError: the file cannot be read.
    """
    found = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                found.append(
                    Outcome(
                        str(row.get("id", number)),
                        str(row["prompt"]),
                        float(row["weak_score"]),
                        float(row["strong_score"]),
                    )
                )
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(
                    f"{path}:{number}: not an object with prompt, weak_score and strong_score: {error!r}"
                ) from error
    return found


def groups(outcomes: Sequence[Outcome]) -> list[int]:
    """Return a number for each outcome, the same if their bare prompts share SAME_WORDS of their words (Jaccard).

    A chain of similar prompts is one group. The time is quadratic in the number of outcomes.
    """
    words = [frozenset(bare_prompt(outcome.prompt).lower().split()) for outcome in outcomes]
    group = list(range(len(words)))

    def root(index: int) -> int:
        while group[index] != index:
            index = group[index]
        return index

    for right in range(len(words)):
        for left in range(right):
            shared = len(words[left] & words[right])
            if shared >= SAME_WORDS * (len(words[left]) + len(words[right]) - shared):
                group[root(right)] = root(left)
    return [root(index) for index in range(len(words))]


def folds(keys: Sequence[object], count: int, order: Sequence[int]) -> list[list[int]]:
    """Return the indices in so many folds of about the same size; those of one key stay together.

    Args:
        keys: one for each index.
        count: number of folds; there are fewer if there are fewer keys.
        order: a permutation of the indices, in which they are dealt.
    """
    members: dict[object, list[int]] = defaultdict(list)
    for index in order:
        members[keys[index]].append(index)
    dealt: list[list[int]] = [[] for _ in range(min(count, len(members)))]
    for indices in members.values():
        min(dealt, key=len).extend(indices)
    return [sorted(fold) for fold in dealt]
