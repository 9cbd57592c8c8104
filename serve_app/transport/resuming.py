"""A request's items from one replica after another: a stream belongs to the user, not to the process that writes it.

When the replica is lost (its process, its engine, its node, or the network to it), the request is asked again: from its
beginning while it has delivered nothing, else from the last token whose text was given out (`Resume`).

ResumingStream   of `/api/inference`
RepeatingStream  of the `/v1` routes, whose answers are vLLM's own: only while nothing has been delivered
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from router.registry import TierName
from serve_app.api.errors import ApiError, incomplete_stream
from serve_app.engine.interface import (
    ID_BYTES,
    NOT_RESUMABLE,
    Admitted,
    Finished,
    HttpProgress,
    HttpRun,
    Leg,
    Resume,
    TokenBatch,
)
from serve_app.transport.asgi_call import ResponseStart
from serve_app.transport.client import GenerationStream, ResponseStream
from serve_app.transport.patience import MOST_REPEATS, PAUSE_S, Patience
from serve_app.transport.stream import TICK, Tick

HANDED_OVER: Final = "handed_over"
"""How a part ended that another tier goes on with."""
_NOTHING: Final = HttpProgress(0, 0)
LOST: Final = frozenset({"replica_lost", "engine_dead", "channel_failed", "stream_cut"})
"""Codes of errors that say nothing about the request: another replica can answer it."""
FULL: Final = "overloaded"
"""Of a tier. It had taken the request before, and has fewer replicas now: a request that is asked again waits."""


class Resumed(NamedTuple):
    """Stands in the stream where a replica was lost and another one is asked."""

    cause: str
    """Code of the error that ended the part before."""
    message: str
    """The same in words."""
    tokens: int
    """Delivered before."""


@dataclass(slots=True)
class ResumingStream:
    """The items of one answer, with a `Resumed` where another replica goes on.

    Args:
        tier: whose replicas answer.
        call: asks a replica, to go on from there, or from the beginning (None).
        until_s: monotonic clock after which nobody is asked again, s.
        clock: monotonic, s.
        on_lost: takes the code of the error of each replica that was lost, and another one is asked.
    """

    tier: TierName
    call: Callable[[Resume | None], GenerationStream]
    until_s: float
    clock: Callable[[], float] = time.monotonic
    on_lost: Callable[[str], None] = lambda code: None
    legs: list[Leg] = field(default_factory=list, init=False)
    """Which replica gave which part, as far as the parts have ended."""
    _items: GenerationStream = field(init=False)
    _admitted: Admitted | None = field(default=None, init=False)
    """By the replica that answers now; None: none has taken the request."""
    _prompt_tokens: int = field(default=0, init=False)
    _ids: bytearray = field(default_factory=bytearray, init=False)
    """Token ids delivered, packed."""
    _before: int = field(default=0, init=False)
    """How many of them the lost replicas delivered."""
    _busy_s: float = field(default=0.0, init=False)
    """Of the replica that answers now, as of its last token, s."""
    _resume: Resume | None = field(default=None, init=False)
    _heard_s: float = field(default=0.0, init=False)
    """When the last item came, by the clock, s."""
    _resumes: int = field(default=0, init=False)
    _finished: bool = field(default=False, init=False)
    _cause: str = field(default="", init=False)
    """Why the last replica was lost, in words."""
    _patience: Patience = field(init=False)

    def __post_init__(self) -> None:
        self._items, self._patience = self.call(None), Patience(self.clock)

    async def get(self, wait_s: float) -> Admitted | TokenBatch | Finished | Resumed | Tick | None:
        """Return the next item as `ItemStream.get` does.

        Raises:
            ApiError: the request failed, or nobody can go on.
        """
        try:
            item = await self._items.get(wait_s)
        except ApiError as error:
            return await self._again(error)
        if item is None and not self._finished:
            return await self._again(incomplete_stream())
        if not isinstance(item, Tick):
            self._heard_s = self.clock()
        if isinstance(item, TokenBatch):
            self._ids += item.ids
            self._busy_s = item.busy_s
        elif isinstance(item, Admitted):
            self._admitted = item
            self._prompt_tokens = len(item.prompt_ids) // ID_BYTES
            self._patience.taken()
        elif isinstance(item, Finished):
            self._finished = True
            return self._whole(item)
        return item

    async def _again(self, error: ApiError) -> Resumed | Tick:
        """Ask another replica; return that it goes on, or a tick if only the call for that was made once more.

        Raises:
            ApiError: that is useless, or was tried often enough.
        """
        if error.code == NOT_RESUMABLE:
            raise ApiError("replica_lost", f"{self._cause}, and {error.message}", status=503, retryable=True)
        is_again = self._resumes > 0 or self._patience.tried
        if (error.code not in LOST and not (is_again and error.code == FULL)) or self.clock() >= self.until_s:
            raise error
        resumes = self._admitted is not None
        if not resumes:
            if self._patience.is_over():
                raise error
        elif self._resumes == MOST_REPEATS:
            raise ApiError(error.code, f"{error.message}, for the third time", status=error.status, retryable=True)
        else:
            self._end_leg(error)
        await self._items.aclose()
        if resumes:
            self.on_lost(error.code)
        else:
            await asyncio.sleep(PAUSE_S)
        self._items = self.call(self._resume)
        self._patience.called()
        return Resumed(error.code, error.message, self.delivered) if resumes else TICK

    def _end_leg(self, error: ApiError) -> None:
        assert self._admitted is not None
        self._resumes += 1
        self._cause = error.message
        self._add_leg(error.code)
        if self.delivered:
            ids = bytes(self._ids)
            self._resume = Resume(self._admitted.entry, self._admitted.prompt_ids, ids, self._resumes)
        self._admitted, self._busy_s, self._before = None, 0.0, self.delivered

    def _add_leg(self, ended_by: str) -> None:
        """Add the part of a replica that was stopped or lost, if it delivered any."""
        if self._admitted is not None and self.delivered > self._before:
            tokens = self.delivered - self._before
            self.legs.append(Leg(self.tier, self._admitted.entry, tokens, self._busy_s, ended_by))

    def _whole(self, last: Finished) -> Finished:
        """Return the end of the whole answer: the last replica knows of its own part alone.

        Its counts of drafts (`spec`) are those of its own part.
        """
        if self._admitted is not None:
            self.legs.append(Leg(self.tier, self._admitted.entry, last.completion_tokens, last.busy_s, "done"))
        busy_s = sum(leg.busy_s for leg in self.legs)
        # As if the first replicas had had as many requests beside this one as the last had.
        scale = busy_s / last.busy_s if last.busy_s > 0 else 1.0
        return replace(
            last,
            completion_tokens=sum(leg.completion_tokens for leg in self.legs),
            queue_ms=last.queue_ms if self._resumes == 0 else 0.0,  # of the first replica it is not known
            busy_s=busy_s,
            engine_s=None if last.engine_s is None else last.engine_s * scale,
            # The lost replicas' joules as if their cards had drawn what the last one's did.
            energy=last.energy.of_more_busy_time(scale),
        )

    async def cut(self, ended_by: str, more_s: Callable[[float], float]) -> list[Leg]:
        """Return which replica gave which part of an answer that is given up; the last one as far as is known.

        Args:
            ended_by: code of why.
            more_s: estimates what the engine did for it since the last item, s, from the time since then, s.
        """
        # Where the client did not read, this is since it read last: the engine went on, and its items are held back.
        quiet_s = 0.0 if self._admitted is None else self.clock() - self._heard_s
        busy_s = self._busy_s + more_s(quiet_s)
        while self._items.peek() is not None:
            await self.get(0)
        if self._admitted is None or self._finished:
            return self.legs
        busy_s = max(busy_s, self._busy_s)
        return [*self.legs, Leg(self.tier, self._admitted.entry, self.delivered - self._before, busy_s, ended_by)]

    async def hand_over(self) -> list[Leg]:
        """Stop the replica that answers now, as another tier goes on; return which replica gave which part.

        What it wrote since, while another tier was asked, is in no part, but in its time.
        """
        while isinstance(item := self._items.peek(), TokenBatch):
            await self._items.get(0)
            self._busy_s = item.busy_s
        await self.aclose()
        self._add_leg(HANDED_OVER)
        return self.legs

    @property
    def complete(self) -> bool:
        """Whether the whole answer has arrived, though perhaps not been taken."""
        return self._items.complete

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, as the last replica that took the request read it; 0: none has."""
        return self._prompt_tokens

    @property
    def delivered(self) -> int:
        """Tokens that were delivered so far."""
        return len(self._ids) // ID_BYTES

    @property
    def busy_s(self) -> float:
        """Shares of the engines' busy time so far, s."""
        return sum(leg.busy_s for leg in self.legs) + (0.0 if self._finished else self._busy_s)

    def peek(self) -> Admitted | TokenBatch | Finished | None:
        """Return the next item if it has arrived."""
        return self._items.peek()

    async def aclose(self) -> None:
        """Stop the replica that answers now."""
        await self._items.aclose()


@dataclass(slots=True)
class RepeatingStream:
    """The items of one answer, which another replica gives from its beginning if the first is lost before it begins.

    Args:
        call: asks a replica.
        until_s: monotonic clock after which nobody is asked again, s.
        clock: monotonic, s.
        on_lost: takes the code of the first error because of which another replica is asked.
        on_progress: takes what the engine has done so far.
    """

    call: Callable[[], ResponseStream]
    until_s: float
    clock: Callable[[], float] = time.monotonic
    on_lost: Callable[[str], None] = lambda code: None
    on_progress: Callable[[HttpProgress], None] = lambda progress: None
    progress: HttpProgress = field(default=_NOTHING, init=False)
    """What the engine that answers now has done so far."""
    read: HttpProgress = field(default=_NOTHING, init=False)
    """What it had done when somebody read of it last; `progress` may be newer, of what had arrived at the end."""
    earlier: list[HttpProgress] = field(default_factory=list, init=False)
    """What the engines of lost replicas had done."""
    _told_s: float = field(default=0.0, init=False)
    """When somebody read it, by the clock, s."""
    _items: ResponseStream = field(init=False)
    _began: bool = field(default=False, init=False)
    _patience: Patience = field(init=False)

    def __post_init__(self) -> None:
        self._items, self._patience = self.call(), Patience(self.clock)

    async def get(self, wait_s: float) -> ResponseStart | bytes | HttpRun | Tick | None:
        """Return the next item as `ItemStream.get` does; a tick where another replica is asked.

        Raises:
            ApiError: the request failed, or nobody can answer.
        """
        until_s = self.clock() + wait_s
        try:
            while isinstance(item := await self._items.get(max(0.0, until_s - self.clock())), HttpProgress):
                self.read, self._told_s = item, self.clock()
                self._note(item)
        except ApiError as error:
            return await self._again(error)
        if item is None and not self._began:
            return await self._again(incomplete_stream())
        self._began = self._began or not isinstance(item, Tick)
        return item

    async def _again(self, error: ApiError) -> Tick:
        is_again = self._patience.tried
        is_lost = error.code in LOST or (is_again and error.code == FULL)
        if self._began or not is_lost or self.clock() >= self.until_s or self._patience.is_over():
            raise error
        if not is_again:
            self.on_lost(error.code)
        await self._items.aclose()
        await asyncio.sleep(PAUSE_S)
        if self.progress.prompt_tokens:
            self.earlier.append(self.progress)
        self.progress, self.read, self._told_s = _NOTHING, _NOTHING, 0.0
        self._items = self.call()
        self._patience.called()
        return TICK

    def _note(self, progress: HttpProgress) -> None:
        self.progress = progress
        self.on_progress(progress)

    @property
    def quiet_s(self) -> float:
        """Time since somebody read what the engine has done, s; 0: nobody has."""
        return self.clock() - self._told_s if self._told_s else 0.0

    async def aclose(self) -> None:
        """Stop the replica that answers now. What has arrived and was not taken is read for its progress."""
        while (item := self._items.peek()) is not None:
            await self._items.get(0)
            if isinstance(item, HttpProgress):
                self._note(item)
        await self._items.aclose()
