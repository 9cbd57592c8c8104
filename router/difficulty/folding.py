"""How a text is folded before words are looked for: lower case, Latin accents off, every other mark a space."""

from __future__ import annotations

import unicodedata


def latin_bytes(text: str) -> bytes:
    """The text in Latin-1, a byte per character; a `?` for each character outside it."""
    return text.encode("latin-1", "replace")


def folded_words(latin: bytes) -> list[str]:
    """The words of a text in Latin-1 (`latin_bytes`), folded; in ASCII."""
    return latin.translate(_FOLD).decode("ascii").split()


def _folding() -> bytes:
    """Latin-1 byte to the byte of a folded text: lower case without accent for letters, digits kept, else a space."""
    table = bytearray(b" " * 256)
    for code in range(256):
        plain = unicodedata.normalize("NFKD", chr(code))[0].lower()
        if plain.isascii() and plain.isalnum():
            table[code] = ord(plain)
    table[ord("ß")] = ord("s")
    return bytes(table)


_FOLD = _folding()
