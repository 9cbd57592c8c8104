"""Problems of GSM8K, and whether an answer is right."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NUMBER: Final = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_MARK: Final = "####"


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem and its numeric answer."""

    question: str
    answer: str

    @property
    def prompt(self) -> str:
        """The question, with how to end the answer."""
        return f"{self.question}\nThink step by step. End with a line that has only `{_MARK}` and the number."


def read_problems(path: Path, count: int) -> list[Problem]:
    """Return the first problems of a file with `turns` and `answer` a line; none if there is no file."""
    if not path.is_file():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[:count]]
    return [Problem(row["turns"][0], str(row["answer"])) for row in rows]


def is_right(problem: Problem, answer: str) -> bool:
    """Return whether the number after the mark, or else the last one, is the problem's answer."""
    _, mark, marked = answer.rpartition(_MARK)
    numbers = _NUMBER.findall(marked if mark else answer)
    given = numbers[0 if mark else -1] if numbers else None
    return given is not None and _value(given) == _value(problem.answer)


def _value(number: str) -> float:
    return float(number.replace(",", ""))
