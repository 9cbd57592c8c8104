"""Cut a text into pieces of words, each with a short vector: what a small language model knows of it.

The pieces are the bundled model's tokens in lower case. Their vectors are its input embeddings, turned and cut to the
few directions in which prompts differ most (`python -m bench.train_router` writes the file). A word that is no piece is
cut greedily into the longest pieces; a character of another script that is no piece has the vectors of its bytes. This
is not the model's own tokenization: it is several times faster, and capital letters make no difference.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

PIECES_FILE: Final = Path(__file__).with_name("pieces.npz")
LONGEST_PIECE: Final = 16
"""Longest piece of a word that is searched, characters."""
_WORD: Final = re.compile(r"[^\W\d_]+|\d|[^\w\s]|_")
"""A run of letters, or one other character. Every character belongs to one alternative, so nothing backtracks."""
_LATIN_END: Final = "\u0250"
"""Letters below this are Latin."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """A vocabulary of pieces with their vectors."""

    index: dict[str, int]
    """Row of each piece in `vectors`. A piece that begins a word begins with a space; `<0x41>` is the byte 0x41."""
    vectors: Floats
    """(pieces, dimensions). The last is what the piece says about the gain; the others are from its embedding."""

    def rows(self, text: str) -> list[int]:
        """Return the rows of a text's pieces, in order."""
        index, found = self.index, []
        for word in _WORD.findall(text):
            row = index.get(" " + word)
            if row is None and len(word) == 1:
                row = index.get(word)
            if row is not None:
                found.append(row)
            elif word[0] < _LATIN_END:
                found += self._cut(word)
            else:
                for character in word:
                    found += self._other_script(character)
        return found

    def mean(self, rows: list[int]) -> Floats:
        """Return the mean vector of these rows: (dimensions,); zero if there are none."""
        if not rows:
            return np.zeros(self.vectors.shape[1], np.float32)
        mean: Floats = self.vectors[rows].mean(axis=0)
        return mean

    def _cut(self, word: str) -> list[int]:
        """Return the rows of the longest pieces that make up a word, from left to right."""
        found, start = [], 0
        while start < len(word):
            for end in range(min(len(word), start + LONGEST_PIECE), start, -1):
                row = self.index.get(word[start:end]) if start else self.index.get(" " + word[:end])
                if row is not None:
                    found.append(row)
                    start = end
                    break
            else:
                start += 1
        return found

    def _other_script(self, character: str) -> list[int]:
        row = self.index.get(character)
        if row is not None:
            return [row]
        found = (self.index.get(f"<0x{byte:02X}>") for byte in character.encode("utf-8", "surrogatepass"))
        return [row for row in found if row is not None]


@lru_cache(maxsize=1)
def load_pieces() -> Pieces:
    """Return the shipped pieces; the first call of a process reads them from the file."""
    with np.load(PIECES_FILE, allow_pickle=False) as stored:
        names = stored["names"].tobytes().decode("utf-8").split("\n")
        vectors = stored["vectors"].astype(np.float32) * stored["scales"]
    return Pieces({name: row for row, name in enumerate(names)}, vectors)
