"""Splits an engine's text deltas into one text per token, losing and doubling nothing.

The engine's text decides: it holds text back while a stop string may be coming, cuts at a stop string, and emits
nothing for half a character. A token's own decoded piece only says where its share of that text ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from serve_app.engine.interface import Token


@dataclass(slots=True)
class _Held:
    token_id: int
    logprob: float | None
    spec_accepted: bool
    spec_k: int
    piece: int
    """Length of its own decoded text; 0: part of a character, or a special token."""
    end: int
    """Offset in the answer at which the token's text ends, characters."""


@dataclass(slots=True)
class TokenTexts:
    """State of one stream.

    Args:
        decode_next: returns the text that one more token id adds to the decoded answer ("" for part of a character).
    """

    decode_next: Callable[[int], str]
    _held: deque[_Held] = field(default_factory=deque)
    _decoded: int = 0
    _sent: int = 0
    _text: str = ""
    """Text that the engine released and no token has taken yet; starts at offset `_sent`."""

    def push(self, token_id: int, logprob: float | None, spec_accepted: bool, spec_k: int = 0) -> None:
        """Add the next output token."""
        piece = len(self.decode_next(token_id))
        self._decoded += piece
        self._held.append(_Held(token_id, logprob, spec_accepted, spec_k, piece, self._decoded))

    def release(self, text: str, finished: bool) -> list[Token]:
        """Return the tokens whose text is complete now that the engine has released `text` as well.

        A token that has only a part of a character waits for the one that completes it: an answer may be resumed after
        any token that was returned, and a decoder cannot begin within a character.

        When `finished`, every held token is returned. Tokens that a stop string cut off have no text, and text beyond
        the last piece goes to the last token.
        """
        self._text += text
        released = self._sent + len(self._text)
        out: list[Token] = []
        for _ in range(len(self._held) if finished else self._ready(released)):
            token = self._held.popleft()
            last = finished and not self._held
            size = len(self._text) if last else max(0, min(token.end - self._sent, len(self._text)))
            out.append(Token(self._text[:size], token.token_id, token.logprob, token.spec_accepted, token.spec_k))
            self._text = self._text[size:]
            self._sent += size
        return out

    def _ready(self, released: int) -> int:
        """Return how many of the held tokens have all their text in the first `released` characters."""
        ready = 0
        for position, token in enumerate(self._held, start=1):
            if token.end > released:
                break
            if token.piece:
                ready = position
        return ready
