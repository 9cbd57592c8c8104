"""Estimate how many tokens a text has on a tokenizer that is not known: at least, and at most.

A tokenizer is a file of the model, which a router without models does not have, and the tiers may have several. So the
text's bytes are counted by kind, and each kind has a most and a least number of tokens. The counts run at the speed of
a memory copy: some 10 ms for a million characters.
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
    """Bytes of one kind."""

    others: bytes
    """All other bytes, which are deleted to count these."""
    most: float
    """Tokens a byte, at most."""


def _kind(most: float, *ranges: tuple[int, int]) -> _Kind:
    those = {byte for low, high in ranges for byte in range(low, high + 1)}
    return _Kind(bytes(byte for byte in range(256) if byte not in those), most)


_KINDS: Final = (
    _kind(0.45, (ord("a"), ord("z"))),
    _kind(0.8, (ord("A"), ord("Z"))),
    _kind(1.0, (ord("0"), ord("9"))),
    _kind(0.3, (ord(" "), ord(" "))),
    _kind(1.0, (0x00, 0x1F), (ord("!"), ord("/")), (ord(":"), ord("@")), (ord("["), ord("`")), (ord("{"), 0x7F)),
    _kind(1.0, (0x80, 0xFF)),
)
_LEAST_A_BYTE: Final = 1 / 8
"""Tokens a byte, at least; runs of one character, of which tokenizers have long tokens, may have fewer."""


def tokens_of(text: str) -> Tokens:
    """Return the range of a text's tokens, without a chat template."""
    data = text.encode("utf-8", "surrogatepass")
    most = sum(kind.most * len(data.translate(None, kind.others)) for kind in _KINDS)
    return Tokens(int(len(data.strip()) * _LEAST_A_BYTE), int(most) + 1)
