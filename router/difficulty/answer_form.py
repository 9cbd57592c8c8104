"""What form of answer a text asks for: one of a few options, one of many, code, or text.

Read from the letters before the options, as people type them too, not from the wording that announces them.
"""

from __future__ import annotations

from string import ascii_lowercase
from typing import Literal, get_args

from router.difficulty.signals import Category

AnswerForm = Literal["either_or", "choice", "code", "text"]
ANSWER_FORMS: tuple[AnswerForm, ...] = get_args(AnswerForm)

EITHER_OR = 3
"""Up to so many options are an either-or: yes, no, maybe."""
MOST_OPTIONS = 12
"""More options are not counted."""
_LABELS = ("\n{}.", "\n{})", "\n({})", "\n{}:", " ({})")
"""What begins an option, in lower case; `{}` is its letter."""
_FIRST_LABELS = {"\n{}.": " {}.", "\n{})": " {})"}
"""The first option may stand on the line that announces the options ("Choose: A. red")."""


def count_options(latin: bytes) -> int:
    """How many options a text in Latin-1 offers, lettered in order from A on: 0, or 2 to MOST_OPTIONS.

    Each letter is looked for behind the one before it, so a kind of label costs one pass of the text.
    """
    text = b"\n" + latin.lower()
    most = max(_lettered(text, label) for label in _LABELS)
    return most if most >= 2 else 0


def answer_form(category: Category, options: int) -> AnswerForm:
    """The form of answer.

    Args:
        category: what kind of prompt the rules see.
        options: how many options it offers (`count_options`).
    """
    if options:
        return "either_or" if options <= EITHER_OR else "choice"
    return "code" if category == "code" else "text"


def _lettered(text: bytes, label: str) -> int:
    place = _find(text, label, "a", 0)
    if place < 0 and label in _FIRST_LABELS:
        place = _find(text, _FIRST_LABELS[label], "a", 0)
    found = 0
    while place >= 0 and found < MOST_OPTIONS:
        found += 1
        place = _find(text, label, ascii_lowercase[found], place + 1)
    return found


def _find(text: bytes, label: str, letter: str, start: int) -> int:
    return text.find(label.format(letter).encode(), start)
