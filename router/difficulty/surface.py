"""The outward form of a text in a few numbers, in linear time: how long its words are, how much of it is digits, ...

None of them looks for a word of a subject or of a template, and none asks for the letters' case: who shouts is not
rated otherwise. Backslashes and braces count for nothing, for they are how benchmarks ask for an answer (`\\boxed{}`).
A text's length is not among them, for the rules know it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from router.difficulty.answer_form import AnswerForm
from router.difficulty.signals import FUNCTION_WORDS

SHORT_WORD = 2
"""Longest short word, letters."""


class Surface(NamedTuple):
    """Features of a text. Shares are 0-1; counts are logarithms, log2(1 + count)."""

    word_length: float
    """Mean length of its words, letters; 0 without words."""
    short_words: float
    """Share of its words that have at most two letters: variables, digits, symbols' names, small words."""
    function_words: float
    """Share of its words that only tie others together (English): high in prose, low in data and lists."""
    digits: float
    """Share of its characters."""
    numbers: float
    """Count of numbers in digits."""
    symbols: float
    """Share of its characters that are brackets, operators or the like."""
    operators: float
    """Count of the signs of formulas and code: = + * / ^ < > $."""
    lines: float
    """Count of lines that hold anything."""
    options: float
    """How many lettered options it offers, itself."""
    answer: AnswerForm
    """What form of answer it asks for."""


def surface(latin: bytes, words: list[str], options: int, answer: AnswerForm) -> Surface:
    """The features of a text.

    Args:
        latin: the text in Latin-1, a byte per character (`router.difficulty.folding.latin_bytes`).
        words: its folded words (`router.difficulty.folding.folded_words`).
        options: how many options it offers (`router.difficulty.answer_form.count_options`).
        answer: what form of answer it asks for.
    """
    chars = max(1, len(latin))
    count = max(1, len(words))
    lengths = list(map(len, words))
    kinds = latin.translate(_KINDS)
    operators = kinds.count(_OPERATOR)
    return Surface(
        word_length=sum(lengths) / count,
        short_words=sum(map(lengths.count, range(1, SHORT_WORD + 1))) / count,
        function_words=sum(map(FUNCTION_WORDS.__contains__, words)) / count,
        digits=kinds.count(_DIGIT) / chars,
        numbers=math.log2(1 + len(latin.translate(_ONLY_DIGITS).split())),
        symbols=(operators + kinds.count(_SYMBOL)) / chars,
        operators=math.log2(1 + operators),
        lines=math.log2(1 + sum(map(bool, map(bytes.strip, latin.split(b"\n"))))),
        options=options,
        answer=answer,
    )


_DIGIT, _OPERATOR, _SYMBOL = b"0", b"+", b"("
_DIGITS, _OPERATORS, _SYMBOLS = b"0123456789", b"=+*/^<>$", b"[]()_|&%#~@"
_MARKS = ((_DIGIT, _DIGITS), (_OPERATOR, _OPERATORS), (_SYMBOL, _SYMBOLS))
_KINDS = bytes(next((kind[0] for kind, marks in _MARKS if code in marks), 32) for code in range(256))
_ONLY_DIGITS = bytes(code if code in _DIGITS else 32 for code in range(256))
