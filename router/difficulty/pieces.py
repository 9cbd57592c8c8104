"""Cut a text into pieces of words, each with a short vector: what a small language model knows of it.

The pieces are the bundled model's tokens in lower case. Their vectors are its input embeddings, turned and cut to the
few directions in which prompts differ most (`python -m bench.train_router` writes the file). A word that is no piece is
cut greedily into the longest pieces; a character of another script that is no piece has the vectors of its bytes. This
is not the model's own tokenization: it is several times faster, and capital letters make no difference.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]

PIECES_FILE: Final = Path(__file__).with_name("pieces.npz")
LONGEST_PIECE: Final = 16
"""Longest piece of a word that is searched, characters."""
_WORD: Final = re.compile(r"[a-z]+[^\W\d_]*|[^\W\d_]+|\S")
"""A run of letters, or one other character that is no space. The first alternative is the second's fast case."""
_OFTEN_WORDS: Final = 20_000
_OFTEN_CHARS: Final = 32
"""Longer words are not remembered: they seldom come again, and would take memory."""
_LATIN_END: Final = "\u0250"
"""Letters below this are Latin."""


@dataclass(frozen=True)
class Pieces:
    """A vocabulary of pieces with their vectors."""

    index: dict[str, int]
    """Row of each piece in `vectors`. A piece that begins a word begins with a space; `<0x41>` is the byte 0x41."""
    vectors: Floats
    """(pieces, dimensions). The last are learned; the others are from the piece's embedding."""
    learned: int = 1
    """How many of the dimensions are learned."""

    @classmethod
    def load(cls, path: Path) -> Pieces:
        """Return the pieces of a file."""
        with np.load(path, allow_pickle=False) as stored:
            names = stored["names"].tobytes().decode("utf-8").split("\n")
            vectors = stored["vectors"].astype(np.float32) * stored["scales"]
            learned = int(stored["learned"])
        return cls({name: row for row, name in enumerate(names)}, vectors, learned)

    def rows(self, text: str) -> Rows:
        """Return the rows of a text's pieces: first those of words that are pieces, then those of all others."""
        words, known = _WORD.findall(text), self._words
        rows = [known[word] for word in words if word in known]
        if len(rows) < len(words):
            others = [word for word in words if word not in known]
            for word in others:
                if word[0] < _LATIN_END:
                    rows += self._cut_often(word) if len(word) <= _OFTEN_CHARS else self._cut(word)
            other_scripts = "".join(word for word in others if word[0] >= _LATIN_END)
            if other_scripts:
                return np.concatenate([np.array(rows, np.int64), *self._other_scripts(other_scripts)])
        return np.array(rows, np.int64)

    def mean(self, rows: Rows) -> Floats:
        """Return the mean vector of these rows: (dimensions,); zero if there are none."""
        mean: Floats = np.full(len(rows), 1 / max(1, len(rows)), np.float32) @ self.vectors.take(rows, axis=0)
        return mean

    def _cut(self, word: str) -> list[int]:
        """Return the rows of the longest pieces that make up a word, from left to right."""
        found, start = [], 0
        while start < len(word):
            for end in range(min(len(word), start + LONGEST_PIECE), start, -1):
                row = self.index.get(word[start:end] if start else " " + word[:end])
                if row is not None:
                    found.append(row)
                    start = end
                    break
            else:
                start += 1
        return found

    def _other_scripts(self, text: str) -> tuple[Rows, Rows]:
        """Return the rows of the characters that are pieces, and those of the bytes of all others."""
        of_character, of_byte = self._tables
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
        rows = of_character[np.minimum(codes, len(of_character) - 1)]
        whole = rows >= 0
        data = codes[~whole].tobytes().decode("utf-32-le", "surrogatepass").encode("utf-8", "surrogatepass")
        of_bytes = of_byte[np.frombuffer(data, np.uint8)]
        return rows[whole], of_bytes[of_bytes >= 0]

    @cached_property
    def _cut_often(self) -> Callable[[str], list[int]]:
        """`_cut`, which remembers words: many that are no pieces come again."""
        return lru_cache(maxsize=_OFTEN_WORDS)(self._cut)

    @cached_property
    def _words(self) -> dict[str, int]:
        """Rows of whole words; a single character that begins no word has the row that it has inside of one."""
        single = {piece: row for piece, row in self.index.items() if len(piece) == 1}
        return single | {piece[1:]: row for piece, row in self.index.items() if piece[0] == " " and len(piece) > 1}

    @cached_property
    def _tables(self) -> tuple[Rows, Rows]:
        """Rows of characters by code, and of bytes; -1 where there is none. The last code is no character."""
        of_character = np.full(0x10000, -1, np.int64)
        for piece, row in self.index.items():
            if len(piece) == 1 and ord(piece) < len(of_character) - 1:
                of_character[ord(piece)] = row
        return of_character, np.array([self.index.get(f"<0x{byte:02X}>", -1) for byte in range(0x100)], np.int64)


@lru_cache(maxsize=1)
def load_pieces() -> Pieces:
    """Return the shipped pieces; the first call of a process reads them from the file."""
    return Pieces.load(PIECES_FILE)
