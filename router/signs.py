"""How an answer goes, told from its tokens as they come: how sure its model is, whether it runs in a loop.

The engine's process has a `SignReader` for each answer that is watched, and tells the newest `Signs` with the tokens.
`router/escalation.py` judges them. Pure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf, nan
from typing import Final, NamedTuple

WINDOW: Final = 16
"""Tokens over which log-probabilities are averaged: of a single token it says little, since every name and number that
a model had to choose has a low one. Our own choice."""

HOPELESS: Final = -4.0
"""Mean log-probability below which an answer is unsure whatever others were: of 55 tokens any might come next. No lower
value is learned, so that many bad answers do not make bad ones usual. Our own choice."""


class Signs(NamedTuple):
    """How an answer goes so far. NaN: not known; every comparison with it is false."""

    logprob: float = nan
    """Mean natural log-probability of the last `WINDOW` tokens."""
    first: float = nan
    """The same of the first `WINDOW` tokens."""
    worst: float = nan
    """The lowest that it was."""
    loop: int = 0
    """Tokens at the end that say the same three times or more, perhaps without a part of the first time."""
    acceptance: float = nan
    """Share of the drafted tokens that were accepted (0-1)."""


NO_SIGNS: Final = Signs()


@dataclass(slots=True)
class SignReader:
    """Reads one answer's tokens, thoughts included."""

    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _sum: float = 0.0
    _first: float = nan
    _worst: float = inf
    _ids: list[int] = field(default_factory=list)
    _last_place: dict[int, int] = field(default_factory=dict)
    """By token: where it stood last."""
    _period: int = 0
    """The distance at which the last tokens stood before."""
    _repeated: int = 0
    """How many of the last tokens did."""
    _drafted: int = 0
    _accepted: int = 0

    def add(self, token_id: int, logprob: float | None, spec_accepted: bool, spec_k: int) -> None:
        """Add the next token; arguments as the fields of the engine's `Token`."""
        if logprob is not None:
            self._add_logprob(logprob)
        self._add_repeat(token_id)
        if spec_accepted:
            self._accepted += 1
        else:  # the last token of its step
            self._drafted += spec_k

    def _add_logprob(self, logprob: float) -> None:
        recent = self._recent
        if len(recent) == WINDOW:
            self._sum -= recent[0]
        recent.append(logprob)
        self._sum += logprob
        if len(recent) == WINDOW:
            mean = self._sum / WINDOW
            self._worst = min(self._worst, mean)
            if self._first != self._first:
                self._first = mean

    def _add_repeat(self, token_id: int) -> None:
        ids, place = self._ids, len(self._ids)
        if self._repeated and ids[place - self._period] == token_id:
            self._repeated += 1
        else:
            # In a loop each token stood one round before, and the rarest of a round nowhere nearer.
            before = self._last_place.get(token_id)
            self._period = 0 if before is None else place - before
            self._repeated = 0 if before is None else 1
        ids.append(token_id)
        self._last_place[token_id] = place

    @property
    def _loop(self) -> int:
        """A text that stands there a second time may be a quotation; the third time it is a loop."""
        return self._repeated + self._period if self._repeated >= 2 * self._period > 0 else 0

    @property
    def signs(self) -> Signs:
        """The signs as of the last token."""
        full = len(self._recent) == WINDOW
        return Signs(
            logprob=self._sum / WINDOW if full else nan,
            first=self._first,
            worst=self._worst if full else nan,
            loop=self._loop,
            acceptance=self._accepted / self._drafted if self._drafted else nan,
        )
