"""The form of a text as a few numbers, in linear time: length of its words, share of digits, form of the answer.

No feature looks for a word of a subject or of a template, and none depends on upper case: a prompt that shouts gets the
same numbers. Backslashes and braces do not count, since benchmarks use them to ask for an answer (`\\boxed{}`). The
length of the text is no feature: the rules use it.
"""

from __future__ import annotations

import math
import unicodedata
from itertools import repeat
from string import ascii_lowercase
from typing import Literal, NamedTuple, get_args

from router.difficulty.categories import Category

AnswerForm = Literal["either_or", "choice", "code", "text"]
"""What a prompt asks for: one of few options, one of many, code, or text."""
ANSWER_FORMS: tuple[AnswerForm, ...] = get_args(AnswerForm)
SHORT_WORD = 2
"""Longest short word, letters."""
EITHER_OR = 3
"""Most options of an `either_or`: yes, no, maybe."""
MOST_OPTIONS = 12
"""Further options are not counted."""


class Features(NamedTuple):
    """Features of a text. Shares are 0-1; counts are logarithms, log2(1 + count)."""

    word_length: float
    """Mean length of its words, letters; 0 without words."""
    short_words: float
    """Share of its words that have at most two letters: variables, digits, small words."""
    function_words: float
    """Share of its words that only connect others (English): high in prose, low in data and lists."""
    digits: float
    """Share of its characters that are digits."""
    numbers: float
    """Count of numbers in digits."""
    symbols: float
    """Share of its characters that are brackets, operators or the like."""
    operators: float
    """Count of the signs of formulas and code: = + * / ^ < > $."""
    lines: float
    """Count of its lines that are not empty."""
    options: float
    """How many lettered options it offers (not a logarithm)."""
    answer: AnswerForm
    """The form of the answer that it asks for."""


def features(latin: bytes, words: list[str], category: Category, function_words: frozenset[str]) -> Features:
    """Return the features of a text.

    Args:
        latin: the text in Latin-1 (`latin_bytes`).
        words: its folded words (`folded_words`).
        category: its category by the rules.
        function_words: the words that only connect others.
    """
    chars = max(1, len(latin))
    count = max(1, len(words))
    lengths = list(map(len, words))
    kinds = latin.translate(_KINDS)
    operators = kinds.count(_OPERATOR)
    options = count_options(latin)
    return Features(
        word_length=sum(lengths) / count,
        short_words=sum(map(lengths.count, range(1, SHORT_WORD + 1))) / count,
        function_words=sum(map(function_words.__contains__, words)) / count,
        digits=kinds.count(_DIGIT) / chars,
        numbers=math.log2(1 + count_numbers(latin)),
        symbols=(operators + kinds.count(_SYMBOL)) / chars,
        operators=math.log2(1 + operators),
        lines=math.log2(1 + sum(map(bool, map(bytes.strip, latin.split(b"\n"))))),
        options=options,
        answer=answer_form(category, options),
    )


def answer_form(category: Category, options: int) -> AnswerForm:
    """Return the form of answer that a prompt with that many options asks for."""
    if options:
        return "either_or" if options <= EITHER_OR else "choice"
    return "code" if category == "code" else "text"


def _labels(label: str) -> tuple[bytes, ...]:
    return tuple(label.format(letter).encode() for letter in ascii_lowercase)


_OPTION_LABELS = tuple(_labels(label) for label in ("\n{}.", "\n{})", "\n({})", "\n{}:", " ({})"))
"""What begins an option, in lower case: for each way to write it, one label a letter."""
_FIRST_OPTION_LABELS = (b" a.", b" a)", None, None, None)
"""The first option may stand on the line that announces the options ("Choose: A. red")."""


def count_options(latin: bytes) -> int:
    """Return how many options a text offers, lettered in order from A on: 0, or 2 to MOST_OPTIONS.

    It goes by the letters, as people type them too, not by the wording that announces options. Each letter is searched
    behind the one before it, so a kind of label takes one pass of the text.
    """
    text = b"\n" + latin.lower()
    most = max(map(_count_labels, repeat(text), _OPTION_LABELS, _FIRST_OPTION_LABELS))
    return most if most >= 2 else 0


def _count_labels(text: bytes, labels: tuple[bytes, ...], first: bytes | None) -> int:
    place = text.find(labels[0])
    if place < 0 and first is not None:
        place = text.find(first)
    found = 0
    while place >= 0 and found < MOST_OPTIONS:
        found += 1
        place = text.find(labels[found], place + 1)
    return found


def latin_bytes(text: str) -> bytes:
    """Return the text in Latin-1, one byte a character, with `?` for each character outside it."""
    return text.encode("latin-1", "replace")


def folded_words(latin: bytes) -> list[str]:
    """Return the words of a text in Latin-1 in lower case without accents; every other mark separates words."""
    return latin.translate(_FOLD).decode("ascii").split()


def count_numbers(latin: bytes) -> int:
    """Return how many numbers in digits a text has."""
    return len(latin.translate(_ONLY_DIGITS).split())


def _folding() -> bytes:
    """Return a table from a Latin-1 byte to its lower-case letter without accent, its digit, or a space."""
    table = bytearray(b" " * 256)
    for code in range(256):
        plain = unicodedata.normalize("NFKD", chr(code))[0].lower()
        if plain.isascii() and plain.isalnum():
            table[code] = ord(plain)
    table[ord("ß")] = ord("s")
    return bytes(table)


_FOLD = _folding()
_DIGIT, _OPERATOR, _SYMBOL = b"0", b"+", b"("
_DIGITS, _OPERATORS, _SYMBOLS = b"0123456789", b"=+*/^<>$", b"[]()_|&%#~@"
_MARKS = ((_DIGIT, _DIGITS), (_OPERATOR, _OPERATORS), (_SYMBOL, _SYMBOLS))
_KINDS = bytes(next((kind[0] for kind, marks in _MARKS if code in marks), 32) for code in range(256))
_ONLY_DIGITS = bytes(code if code in _DIGITS else 32 for code in range(256))
