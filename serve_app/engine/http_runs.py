"""Watch what an engine does for one HTTP request, whichever route and library makes its answer.

vLLM's HTTP layers name their engine requests in ways of their own, and only some show usage. So the watch is in the
context (`contextvars`) of the request's task, which all tasks that it starts inherit; the engine looks there when a
request is added to it.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable, Hashable
from contextvars import Context, ContextVar
from dataclasses import replace
from functools import reduce

from serve_app.engine.interface import EngineError, Finished, HttpProgress, HttpRun, SpecStats
from sustainability.measured import Energy

_CURRENT: ContextVar[RunWatch | None] = ContextVar("http run", default=None)


def current_run() -> RunWatch | None:
    """Return the watch of the HTTP request that this task works for; None: it works for none."""
    return _CURRENT.get()


class RunWatch:
    """What the engine does for one HTTP request.

    Args:
        sequences: answers that it has.
        clock: monotonic, s.
    """

    def __init__(self, sequences: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._missing = sequences
        self._clock = clock
        self._admitted_s: float | None = None
        self._first_token_s: float | None = None
        self._finished: dict[Hashable, Finished] = {}
        self._completion_tokens = 0
        self._progress = self._told = HttpProgress(0, 0)
        self._busy_s: dict[Hashable, float] = {}
        self.refusal: EngineError | None = None
        """Why the engine did not take a request."""

    @property
    def is_admitted(self) -> bool:
        """Whether the engine took a request."""
        return self._admitted_s is not None

    def context(self) -> Context:
        """Return a copy of this context with the watch in it."""
        context = contextvars.copy_context()
        context.run(_CURRENT.set, self)
        return context

    def admitted(self, prompt_tokens: int = 0) -> None:
        """Note that the engine took a request, with so many tokens of a prompt that was not counted before."""
        if self._admitted_s is None:
            self._admitted_s = self._clock()
        before = self._progress
        self._progress = before._replace(prompt_tokens=before.prompt_tokens + prompt_tokens)

    def token(self, tokens: int = 1, busy_s: float = 0.0, record: Hashable = None) -> None:
        """Note that there are tokens.

        Args:
            tokens: how many.
            busy_s: what the record has of the engine's busy time by now, s.
            record: several answers may have the same.
        """
        if self._first_token_s is None:
            self._first_token_s = self._clock()
        before = self._progress
        more_s = busy_s - self._busy_s.get(record, 0.0)
        self._busy_s[record] = busy_s
        self._progress = before._replace(
            completion_tokens=before.completion_tokens + tokens, busy_s=before.busy_s + more_s
        )

    def progress(self) -> HttpProgress | None:
        """Return what was done so far; None: nothing since it was asked for last."""
        if self._progress == self._told:
            return None
        self._told = self._progress
        return self._progress

    def finished(self, finished: Finished, record: Hashable = None) -> None:
        """Note the end of one answer. Answers with the same record of drafts count their drafts together."""
        self._completion_tokens += finished.completion_tokens
        before = self._finished.get(record)
        if before is not None and before.completion_tokens > finished.completion_tokens:
            finished = replace(finished, completion_tokens=before.completion_tokens)
        self._finished[record] = finished
        self._missing -= 1

    def take(self) -> HttpRun | None:
        """Return the run, once, when all its answers are complete."""
        if self._missing or self._admitted_s is None:
            return None
        self._missing = -1
        now_s = self._clock()
        first_s = self._first_token_s
        since_first_s = None if first_s is None else now_s - first_s
        ends = _together(list(self._finished.values()))
        return HttpRun(ends, now_s - self._admitted_s, since_first_s, self._completion_tokens)


def _together(ends: list[Finished]) -> Finished:
    if len(ends) == 1:
        return ends[0]
    longest = max(ends, key=lambda end: end.completion_tokens)
    spec = SpecStats(
        steps=sum(end.spec.steps for end in ends),
        draft_tokens=sum(end.spec.draft_tokens for end in ends),
        accepted_tokens=sum(end.spec.accepted_tokens for end in ends),
    )
    busy_s, idle_s = sum(end.busy_s for end in ends), sum(end.idle_s for end in ends)
    energy = reduce(Energy.plus, (end.energy for end in ends))
    return replace(longest, spec=spec, busy_s=busy_s, idle_s=idle_s, energy=energy)
