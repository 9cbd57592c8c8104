"""Estimate how many tokens a text has on a tokenizer that is not known: at least, at most, and likely.

A tokenizer is a file of the model, which a router without models does not have, and the tiers may have several. So the
text's bytes are counted by kind, and a kind has a most: 0.2 ms for 100,000 characters.

The most of a kind was set by hand on 1,500 texts (prompts in English, Japanese, Korean, French and Spanish, program
messages in Polish and Chinese, source code) and the bundled tokenizer, whose 49,000 tokens are nearly all English, and
two of Mistral's (32,000 and 131,000 tokens). A script of which there were no texts has a token a byte, which no
byte-level tokenizer exceeds. The most is 1.1 to 2.0 times the bundled tokenizer's count, and up to 3 times that of a
large vocabulary on Asian texts. `tests/integration/libraries/test_tokenizers.py` has 25 kinds of text that it was not
set on, but for digits: numbers, base64 and hex were too many tokens at first.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Tokens(NamedTuple):
    """A range that holds a number of tokens."""

    least: int
    most: int

    def plus(self, other: Tokens) -> Tokens:
        """Return the range of the sum."""
        return Tokens(self.least + other.least, self.most + other.most)


# Tokens a character of a kind, at most, with the first bytes that such a character has in UTF-8.
_KINDS: Final = (
    (0.42, (ord("a"), ord("z"))),
    (0.95, (ord("A"), ord("Z"))),
    (0.3, (ord(" "), ord(" "))),
    (1.5, (ord("0"), ord("9"))),  # letters and spaces beside digits are often tokens of their own
    # Punctuation, line ends and other control characters.
    (1.0, (0x00, 0x1F), (ord("!"), ord("/")), (ord(":"), ord("@")), (ord("["), ord("`")), (ord("{"), 0x7F)),
    (2.5, (0xC2, 0xCD)),  # Latin letters with marks: the plain ones beside them are of a language with more tokens
    (2.0, (0xCE, 0xDF)),  # Greek, Cyrillic, Hebrew, Arabic
    (3.0, (0xE0, 0xE2), (0xEE, 0xEF)),  # Indic scripts, Thai, Vietnamese marks; punctuation
    (2.1, (0xE3, 0xE9)),  # Kana, Chinese
    (2.8, (0xEA, 0xED)),  # Hangul
    (4.0, (0xF0, 0xF7)),  # emoji
)
_LEAST_A_BYTE: Final = 1 / 8
"""Tokens a byte, at least, but for spaces. Long runs of one letter may have fewer."""
_BYTES_PER_TOKEN: Final = 4


def _a_byte() -> NDArray[np.float64]:
    """Return the tokens that each byte counts for: (least and most, bytes)."""
    tokens = np.zeros((2, 0x100))
    tokens[0] = _LEAST_A_BYTE
    tokens[0, list(b" \t\r\n")] = 0
    for most, *ranges in _KINDS:
        for low, high in ranges:
            tokens[1, low : high + 1] = most
    return tokens


_A_BYTE: Final = _a_byte()


def tokens_of(text: str) -> Tokens:
    """Return the range of a text's tokens, without a chat template."""
    data = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
    least, most = _A_BYTE @ np.bincount(data, minlength=0x100)
    return Tokens(int(least), int(most) + 1)


def likely_tokens(text: str) -> int:
    """Return a middle estimate, by a rule of thumb for byte-pair tokenizers: four bytes of UTF-8 a token.

    English has about 4, and the three bytes of a CJK character make it count for three Latin ones. It is off by up to a
    factor of two, so it serves for lengths that are compared with round numbers of ours, never for a context.
    """
    return len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN
