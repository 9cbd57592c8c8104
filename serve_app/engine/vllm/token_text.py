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
        self._decoded += len(self.decode_next(token_id))
        self._held.append(_Held(token_id, logprob, spec_accepted, spec_k, self._decoded))

    def release(self, text: str, finished: bool) -> list[Token]:
        """Return the tokens whose text is complete now that the engine has released `text` as well.

        When `finished`, every held token is returned. Tokens that a stop string cut off have no text, and text beyond
        the last piece goes to the last token.
        """
        self._text += text
        released = self._sent + len(self._text)
        out: list[Token] = []
        while self._held and (finished or self._held[0].end <= released):
            token = self._held.popleft()
            last = finished and not self._held
            size = len(self._text) if last else max(0, min(token.end - self._sent, len(self._text)))
            out.append(Token(self._text[:size], token.token_id, token.logprob, token.spec_accepted, token.spec_k))
            self._text = self._text[size:]
            self._sent += size
        return out
