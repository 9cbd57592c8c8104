"""Prompts by family: from files of public benchmarks, and generated JSON to copy."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_FAMILY_OF: Final[Mapping[str, str]] = {
    "summarization": "summarisation",
    "math_reasoning": "math",
    "coding": "code",
    **dict.fromkeys(("writing", "roleplay", "reasoning", "extraction", "stem", "humanities", "qa"), "chat"),
}
"""Spec-Bench divides these families more finely; others keep their name."""
COPYING: Final = "json_copying"
_BUILTIN: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    "chat": (
        "Explain to a curious friend, in about ten sentences, {}.",
        (
            "why the sky is blue",
            "how a bicycle stays upright",
            "what inflation is",
            "how vaccines work",
            "why cats purr",
            "how bread rises",
            "what a black hole is",
            "how tides come about",
        ),
    ),
    "code": (
        "Write a Python function that {}. Add type hints and a docstring.",
        (
            "reverses a linked list",
            "checks whether brackets are balanced",
            "merges two sorted lists",
            "finds all primes below n",
            "counts the words of a text",
            "parses a CSV line",
            "computes a moving average",
            "finds the longest common prefix of strings",
        ),
    ),
    "math": (
        "Solve step by step: {}",
        (
            "a train goes 180 km in 2.5 hours; how far does it go in 4 hours?",
            "what is 17 * 24 - 13 * 9?",
            "a shirt costs 40 after 20% off; what was its price?",
            "three pens cost 4.50; what do seven cost?",
            "the sum of two numbers is 41 and their difference 7; which are they?",
            "how many diagonals has a polygon with nine sides?",
            "a tank fills in 6 hours by one pipe and in 3 by another; how long with both?",
            "what is the average of 12, 19, 23 and 30?",
        ),
    ),
}
_PARTS: Final = ("bolt", "nut", "washer", "gear", "spring", "valve", "hinge", "bracket", "cable", "fuse")
_COLOURS: Final = ("red", "green", "blue", "black", "white")


class PromptError(ValueError):
    """A prompt file cannot be read; the message says which line and why."""


def read_families(folder: Path) -> dict[str, list[str]]:
    """Return the first turns of every prompt in the folder's `*.jsonl` files, by family, in the order of the files.

    A line is a JSON object with `family` and `turns`. Files whose first line has no `turns` are of another kind and are
    skipped.

    Raises:
        PromptError: there is no prompt file, or a line of one is not of this form.
    """
    families: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            row = _row(path, number, line)
            if row is None:
                if number == 1:
                    break
                raise PromptError(f"{path}:{number}: must have `family` and `turns` (a list of texts)")
            family, prompt = row
            families.setdefault(_FAMILY_OF.get(family, family), []).append(prompt)
    if not families:
        raise PromptError(f"{folder}: no *.jsonl file with `family` and `turns` in it")
    return families


def _row(path: Path, number: int, line: str) -> tuple[str, str] | None:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise PromptError(f"{path}:{number}: not JSON: {error}") from error
    match row:
        case {"family": str(family), "turns": [str(first), *_]}:
            return family, first
    return None


def builtin_families() -> dict[str, list[str]]:
    """Return a few prompts by category, for machines without files of public benchmarks."""
    return {name: [form.format(subject) for subject in subjects] for name, (form, subjects) in _BUILTIN.items()}


def copying_prompts(count: int) -> list[str]:
    """Return prompts that ask to repeat a JSON document, which n-gram drafts are best at."""
    return [f"Repeat this JSON exactly, and nothing else:\n{_document(seed)}" for seed in range(count)]


def _document(seed: int) -> str:
    chance = random.Random(seed)
    items = [
        {
            "id": chance.randrange(1000, 9999),
            "name": chance.choice(_PARTS),
            "colour": chance.choice(_COLOURS),
            "quantity": chance.randrange(1, 99),
        }
        for _ in range(4)
    ]
    return json.dumps({"items": items})


def cycled(prompts: Sequence[str], start: int, count: int) -> list[str]:
    """Return `count` prompts from `start` on, beginning again after the last."""
    return [prompts[(start + index) % len(prompts)] for index in range(count)]
