"""Fold a text to plain words: lower case, no accents, in linear time."""

from __future__ import annotations

import unicodedata


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
_DIGITS = b"0123456789"
_ONLY_DIGITS = bytes(code if code in _DIGITS else 32 for code in range(256))
