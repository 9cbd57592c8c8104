"""Fold a text to plain words: lower case, no accents, in linear time."""

from __future__ import annotations

import unicodedata


def latin_bytes(text: str) -> bytes:
    """Return the text in Latin-1, one byte a character, with `?` for each character outside it."""
    return text.encode("latin-1", "replace")


def folded_words(latin: bytes) -> list[str]:
    """Return the words of a text in Latin-1 in lower case without accents; every other mark separates words."""
    return latin.translate(_FOLD).decode("ascii").split()


def folded_sentences(text: str) -> list[str]:
    """Return the sentences of a text, folded as their words are; those without a word are left out."""
    # A question mark stands for every character outside Latin-1 too, of which most are quotation marks.
    parts = latin_bytes(text.replace("?", "\n")).translate(_FOLD_SENTENCES).decode("ascii").split("\n")
    return [part for part in parts if not part.isspace() and part]


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
_FOLD_SENTENCES = bytes(ord("\n") if code in b".!\n" else _FOLD[code] for code in range(256))
_DIGITS = b"0123456789"
_ONLY_DIGITS = bytes(code if code in _DIGITS else 32 for code in range(256))
