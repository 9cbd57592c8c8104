"""Prompts with the outcomes of a weak and a strong model, read from a file and told apart by what they repeat."""

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
"""RouterArena's cached results, a part of them; Apache-2.0."""
SAME_WORDS = 0.6
"""Two prompts that share this part of their words are one task in two wordings, or two questions on one text."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A prompt, and how the two models answered it."""

    id: str
    prompt: str
    weak_score: float
    """0 (wrong) to 1 (right), as is `strong_score`; translation scores may be a little under 0."""
    strong_score: float

    @property
    def gain(self) -> float:
        """What the strong model gains."""
        return self.strong_score - self.weak_score

    @property
    def benchmark(self) -> str:
        """The benchmark it is from: the first word of its id, so that all subjects of one are together."""
        name = self.id.rpartition("_")[0] or self.id
        return name.partition("_")[0].partition("-")[0]


def read_outcomes(path: Path) -> list[Outcome]:
    """The outcomes of a JSON Lines file, one object a line; keys that are not used are ignored.

    Raises:
        ValueError: names the first line that is no such object.
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
    """A number for each outcome, the same for those whose bare prompts share SAME_WORDS of their words (Jaccard).

    Links are followed, so a chain of similar prompts is one group. Quadratic in the number of outcomes.
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
    """Indices dealt into so many folds of about one size; those of one key stay together.

    Args:
        keys: one for each index.
        count: how many folds; fewer where there are fewer keys.
        order: a permutation of the indices, in which they are dealt.
    """
    members: dict[object, list[int]] = defaultdict(list)
    for index in order:
        members[keys[index]].append(index)
    dealt: list[list[int]] = [[] for _ in range(min(count, len(members)))]
    for indices in members.values():
        min(dealt, key=len).extend(indices)
    return [sorted(fold) for fold in dealt]
