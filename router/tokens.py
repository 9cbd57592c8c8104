"""Estimate how many tokens a text has on a tokenizer that is not known: at least, and at most.

A tokenizer is a file of the model, which a router without models does not have, and the tiers may have several. So the
text's bytes are counted by kind, and a kind has a most. The counts run at the speed of a memory copy: 2 ms for 100,000
characters.

The most of a kind was set by hand on 1,500 texts (prompts in English, Japanese, Korean, French and Spanish, program
messages in Polish and Chinese, source code) and the bundled tokenizer, whose 49,000 tokens are nearly all English, and
two of Mistral's (32,000 and 131,000 tokens). A script of which there were no texts has a token a byte, which no
byte-level tokenizer exceeds. The most is 1.1 to 2.0 times the bundled tokenizer's count, and up to 3 times that of a
large vocabulary on Asian texts. `tests/integration/libraries/test_tokenizers.py` has 25 kinds of text that it was not
set on, but for digits: numbers, base64 and hex were too many tokens at first.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Tokens(NamedTuple):
    """A range that holds a number of tokens."""

    least: int
    most: int

    def plus(self, other: Tokens) -> Tokens:
        """Return the range of the sum."""
        return Tokens(self.least + other.least, self.most + other.most)


class _Kind(NamedTuple):
    """Characters of one kind."""

    others: bytes
    """All bytes but the first ones of these characters' UTF-8, which are deleted to count them."""
    most: float
    """Tokens a character, at most."""


def _kind(most: float, *ranges: tuple[int, int]) -> _Kind:
    those = {byte for low, high in ranges for byte in range(low, high + 1)}
    return _Kind(bytes(byte for byte in range(256) if byte not in those), most)


_KINDS: Final = (
    _kind(0.42, (ord("a"), ord("z"))),
    _kind(0.95, (ord("A"), ord("Z"))),
    _kind(0.3, (ord(" "), ord(" "))),
    _kind(1.5, (ord("0"), ord("9"))),  # letters and spaces beside digits are often tokens of their own
    # Punctuation, line ends and other control characters.
    _kind(1.0, (0x00, 0x1F), (ord("!"), ord("/")), (ord(":"), ord("@")), (ord("["), ord("`")), (ord("{"), 0x7F)),
    _kind(2.5, (0xC2, 0xCD)),  # Latin letters with marks: the plain ones beside them are of a language with more tokens
    _kind(2.0, (0xCE, 0xDF)),  # Greek, Cyrillic, Hebrew, Arabic
    _kind(3.0, (0xE0, 0xE2), (0xEE, 0xEF)),  # Indic scripts, Thai, Vietnamese marks; punctuation
    _kind(2.1, (0xE3, 0xE9)),  # Kana, Chinese
    _kind(2.8, (0xEA, 0xED)),  # Hangul
    _kind(4.0, (0xF0, 0xF7)),  # emoji
)
_SPACE: Final = b" \t\r\n"
_LEAST_A_BYTE: Final = 1 / 8
"""Tokens a byte, at least, but for spaces. Long runs of one letter may have fewer."""


def tokens_of(text: str) -> Tokens:
    """Return the range of a text's tokens, without a chat template."""
    data = text.encode("utf-8", "surrogatepass")
    most = sum(kind.most * len(data.translate(None, kind.others)) for kind in _KINDS)
    return Tokens(int(len(data.translate(None, _SPACE)) * _LEAST_A_BYTE), int(most) + 1)
