"""A text as numbers: its pieces, its form, its character n-grams. Linear time, a fraction of a millisecond.

Letters count in lower case, so a prompt that shouts gets the same numbers. Of a long text the beginning and the end are
read; its whole length counts.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from router.difficulty.pieces import Floats, Pieces
from router.difficulty.scan import beginning_and_end

READ_CHARS: Final = 1000
"""The first and the last half of this many characters are read. More are no better in cross-validation."""
LONGEST_GRAM: Final = 4
"""Character n-grams have 2 to this many characters."""
GRAMS: Final = 1024
"""Kinds of n-grams."""
_HASH: Final = np.uint32(2654435761)
"""Knuth's multiplier: 2^32 over the golden ratio."""
_HASH_SHIFT: Final = np.uint32(22)
"""Leaves log2(GRAMS) bits of 32."""
_NO_DIFFERENCE: Final = " \t\r\n.!"
_NO_DIGIT: Final = np.zeros(1, bool)
MOST_OPTIONS: Final = 12
"""Further options are not counted."""

_KINDS: Final = (
    "letters",
    "digits",
    "spaces",
    "symbols",
    "latin",
    "cjk",
    "kana",
    "hangul",
    "other",
)
FORM: Final = (
    "characters",
    "pieces",
    "characters a piece",
    *_KINDS,
    "not ASCII",
    "word length",
    "different words",
    "numbers",
    "lines",
    "options",
    "questions",
    "dollar signs",
    "backslashes",
    "code signs",
    "quotes",
    "equals",
    "symbols in all",
    "ends with a question",
    "kana at all",
    "hangul at all",
    "accents at all",
    "fence",
)
"""Names of the form's numbers. Kinds are shares of the characters; counts are logarithms, log(1 + count)."""


def _kind_of(code: int) -> int:
    character = chr(code)
    if code < 128:
        name = (
            ("letters" if character.isalpha() else "digits" if character.isdigit() else "spaces")
            if character.isalnum() or character.isspace()
            else "symbols"
        )
    elif 0xC0 <= code < 0x250:
        name = "latin"
    elif 0x4E00 <= code <= 0x9FFF:
        name = "cjk"
    elif 0x3040 <= code <= 0x30FF:
        name = "kana"
    elif 0xAC00 <= code <= 0xD7A3:
        name = "hangul"
    else:
        name = "other"
    return _KINDS.index(name)


_KIND_OF: Final = np.array([_kind_of(code) for code in range(0x10000)], np.uint8)
"""Index in _KINDS of each code of the basic plane; all others are "other"."""


class Features(NamedTuple):
    """A text as numbers."""

    pieces: Floats
    """Mean vector of its pieces."""
    form: Floats
    """In the order of `FORM`."""
    grams: Floats
    """How often each of GRAMS kinds of character n-grams stands in it: log(1 + count), of length 1 in all."""


def features(text: str, pieces: Pieces) -> Features:
    """Return the features of a text; a full stop or a shout at its end makes no difference."""
    text = text.strip(_NO_DIFFERENCE)
    read = beginning_and_end(text, READ_CHARS).lower()
    rows = pieces.rows(read)
    codes = np.frombuffer(read.encode("utf-32-le", "surrogatepass"), "<u4")
    return Features(pieces.mean(rows), form(read, codes, len(text), len(rows)), grams(codes))


def grams(codes: NDArray[np.uint32]) -> Floats:
    """Return the character n-grams of a text by kind; a kind is what a hash makes of several n-grams."""
    hashed, found = codes, []
    for longer in range(1, LONGEST_GRAM):
        hashed = hashed[:-1] * _HASH + codes[longer:]
        found.append((hashed * _HASH) >> _HASH_SHIFT)
    counts = np.log1p(np.bincount(np.concatenate(found), minlength=GRAMS)).astype(np.float32)
    return counts / max(float(np.sqrt(counts @ counts)), 1e-6)


def form(read: str, codes: NDArray[np.uint32], characters: int, piece_count: int) -> Floats:
    """Return the numbers of a form.

    Args:
        read: the part of the text that is read, in lower case.
        codes: of its characters.
        characters: of the whole text.
        piece_count: pieces of the part that is read.
    """
    length = max(1, len(read))
    kinds = np.bincount(_KIND_OF[np.minimum(codes, 0xFFFF)], minlength=len(_KINDS))
    shares = (kinds / length).tolist()
    count = dict(zip(_KINDS, kinds.tolist(), strict=True))
    words = read.split()
    questions = read.count("?") + read.count("\uff1f")
    digit = np.concatenate([_NO_DIGIT, (codes >= ord("0")) & (codes <= ord("9"))])
    numbers = int(np.count_nonzero(digit[1:] & ~digit[:-1]))
    lines = [line for line in read.split("\n") if line and not line.isspace()]
    values = (
        math.log1p(characters),
        math.log1p(piece_count),
        len(read) / max(1, piece_count),
        *shares,
        sum(shares[_KINDS.index("latin") :]),
        sum(map(len, words)) / max(1, len(words)),
        len(set(words)) / max(1, len(words)),
        math.log1p(numbers),
        math.log1p(len(lines)),
        min(MOST_OPTIONS, sum(line[0] in _OPTION_STARTS and _is_option(line) for line in lines)),
        math.log1p(questions),
        math.log1p(read.count("$")),
        math.log1p(read.count("\\")),
        math.log1p(sum(map(read.count, "`{;("))),
        math.log1p(read.count('"')),
        math.log1p(read.count("=")),
        math.log1p(count["symbols"]),
        float(read.rstrip()[-1:] in ("?", "\uff1f")),
        float(count["kana"] > 0),
        float(count["hangul"] > 0),
        float(count["latin"] > 0),
        float("```" in read),
    )
    return np.array(values, np.float32)


def _is_option(line: str) -> bool:
    """Return whether a line begins with a lettered option: `a.`, `a)`, `(a)`."""
    start = line.lstrip("( ")
    return start[:1] in _OPTION_LETTERS and start[1:2] in _OPTION_MARKS


_OPTION_LETTERS: Final = tuple("abcdefghij")
_OPTION_STARTS: Final = frozenset((*_OPTION_LETTERS, "(", " "))
_OPTION_MARKS: Final = (".", ")", ":")
