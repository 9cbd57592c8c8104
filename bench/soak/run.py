"""The streams of a run, and the faults among them."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

import psutil

from bench.load.client import Outcome, Request, fetch
from bench.reporting.report import Value
from bench.soak.faults import REPLICAS, Faults, NotNowError
from bench.soak.readers import ChatReader, Json, Tally, TokenReader

MOST_HITS: Final = 2
CUTTING: Final = frozenset({"engine", "replica", "sigterm", "silence", "socket", "node"})
"""Faults that cut streams; the others let them end."""
PARTS: Final = frozenset({"redeploy", "controller"})
"""`build` is made of both."""
CHAT_EVERY: Final = 8
"""One in so many streams is one of `/v1`."""
ENDS_WITHIN_S: Final = 960.0
"""A stream without an end by then hangs: `limits.request_timeout_s` and a minute."""
MAX_TOKENS: Final = 64
"""Of each answer."""
HANGS_AFTER_S: Final = 120.0
"""A stream without a token for so long, s, is looked at while it hangs."""
_WATCH_EVERY_S: Final = 10.0
_POLL_S: Final = 0.5
PROMPTS: Final = (
    "Write a long story about a lighthouse keeper.",
    "Explain step by step how a steam engine works.",
    "Write a cheerful message full of emoji: 🎉🚀👩‍🔬🌍",
    "Count from one to one hundred in words, separated by commas.",
    "Repeat this line again and again: the dial turns, the light burns 💡.",
    "Tell a story in which every sentence begins with the word café.",
    "List fifty things one can see in a harbour.",
    "Write a dialogue between the moon 🌙 and the sea 🌊.",
)
_STOP_CHARS: Final = 8
ReaderT = TypeVar("ReaderT", TokenReader, ChatReader)


@dataclass(frozen=True, slots=True)
class Exercise:
    """A request of `/api/inference`, and its undisturbed answer."""

    request: Request
    whole: TokenReader


@dataclass(frozen=True, slots=True)
class Chat:
    """A request of `/v1`, and its undisturbed answer."""

    request: Request
    whole: ChatReader


@dataclass(frozen=True, slots=True)
class Exercises:
    """What the streams ask."""

    own: Sequence[Exercise]
    chats: Sequence[Chat]

    @property
    def stopped(self) -> int:
        """How many answers a stop string ends."""
        return sum(bool(each.request.body.get("stop")) for each in self.own)

    @property
    def parts(self) -> int:
        """Tokens that are only a part of a character."""
        return sum(each.whole.parts for each in self.own)

    @property
    def accepted(self) -> int:
        """Tokens that were drafted."""
        return sum(each.whole.accepted for each in self.own)


@dataclass(slots=True)
class Soak:
    """One run.

    Args:
        faults: what may happen.
        exercises: what is asked.
        streams: how many are open at a time.
        pause_s: mean time between two faults, s.
        draw: random.
    """

    faults: Faults
    exercises: Exercises
    streams: int
    pause_s: float
    draw: random.Random
    tally: Tally = field(default_factory=Tally)
    kills: Counter[str] = field(default_factory=Counter)
    log: list[str] = field(default_factory=list)
    hung: int = 0
    """Streams without a token for `HANGS_AFTER_S`."""
    _open: set[TokenReader | ChatReader] = field(default_factory=set)
    _hits: dict[int, int] = field(default_factory=dict)
    """Faults since each open stream began."""
    _began_s: float = 0.0
    _ended: bool = False

    async def run(self, seconds: float) -> None:
        """Draw all kinds of faults in turns for so long, and up to twice as long until each has happened.

        Streams that are open then are read to their end.
        """
        now_s = time.monotonic()
        await self._during(self._draw_until(now_s + seconds, now_s + 2 * seconds))

    async def run_each(self) -> None:
        """Let each kind of fault happen once, but for the parts of others.

        Streams that are open then are read to their end.
        """
        await self._during(self._draw_each())

    async def _during(self, faults: Awaitable[None]) -> None:
        self._began_s = time.monotonic()
        watching = asyncio.ensure_future(self._watch())
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self.streams):
                    group.create_task(self._read(number))
                try:
                    await faults
                finally:
                    self._ended = True
        finally:
            watching.cancel()

    async def _watch(self) -> None:
        """Note the streams that hang, each once, and what the processes do meanwhile."""
        noted: set[TokenReader | ChatReader] = set()
        while True:
            await asyncio.sleep(_WATCH_EVERY_S)
            now_s = time.monotonic()
            hang = {reader for reader in self._open if now_s - reader.heard_s > HANGS_AFTER_S} - noted
            if hang:
                noted |= hang
                self.hung += len(hang)
                self._note(now_s, f"{len(hang)} streams hang")
                await asyncio.to_thread(self.faults.cluster.dump_stacks)

    async def _read(self, number: int) -> None:
        is_chat = number % CHAT_EVERY == CHAT_EVERY - 1
        while not self._ended:
            self._hits[number] = 0
            await (self._read_chat() if is_chat else self._read_own())
            del self._hits[number]

    async def _read_own(self) -> None:
        exercise = self.draw.choice(self.exercises.own)
        reader = TokenReader()
        outcome = await self._fetched(exercise.request, reader)
        reader.error = reader.error or outcome.error
        self.tally.add(reader, exercise.whole)
        if reader.error is not None and reader.ids:
            self._note(outcome.end_s, f"a stream was cut after {len(reader.ids)} tokens: {reader.error}")

    async def _read_chat(self) -> None:
        chat = self.draw.choice(self.exercises.chats)
        reader = ChatReader()
        outcome = await self._fetched(chat.request, reader)
        reader.error = reader.error or outcome.error
        self.tally.add_chat(reader, chat.whole)
        if reader.error is not None and reader.text:
            self._note(outcome.end_s, f"a stream of /v1 was cut: {reader.error}")

    async def _fetched(self, request: Request, reader: ReaderT) -> Outcome[ReaderT]:
        reader.heard_s = time.monotonic()
        self._open.add(reader)
        try:
            return await fetch(request, reader, to_end=True)
        finally:
            self._open.remove(reader)

    async def _draw_until(self, ends_s: float, latest_s: float) -> None:
        while time.monotonic() < ends_s or not set(self.faults.kinds) <= set(self.kills):
            kinds = list(self.faults.kinds)
            self.draw.shuffle(kinds)
            for kind in kinds:
                until_s = ends_s if self.kills[kind] else latest_s
                pause_s = self.draw.expovariate(1 / self.pause_s)
                await asyncio.sleep(max(0.0, min(pause_s, until_s - time.monotonic())))
                if not await self._make(kind, until_s) and time.monotonic() >= latest_s:
                    return

    async def _draw_each(self) -> None:
        kinds = [kind for kind in self.faults.kinds if kind not in PARTS]
        self.draw.shuffle(kinds)
        for kind in kinds:
            await asyncio.sleep(self.draw.expovariate(1 / self.pause_s))
            if not await self._make(kind, time.monotonic() + ENDS_WITHIN_S):
                raise TimeoutError(f"no moment for the fault {kind}: {self.log}")

    async def _make(self, kind: str, ends_s: float) -> bool:
        """Wait for a moment in which another replica can go on, and no stream is hit a third time; then let it happen.

        Returns:
            Whether there was one in time.
        """
        while time.monotonic() < ends_s:
            if not await self._may(kind):
                await asyncio.sleep(_POLL_S)
                continue
            if kind in CUTTING:
                self._hits = {number: hits + 1 for number, hits in self._hits.items()}
            began_s = time.monotonic()
            try:
                await self.faults.kinds[kind]()
            except (psutil.NoSuchProcess, NotNowError):
                continue  # it ended by itself
            self.kills[kind] += 1
            self._note(began_s, kind)
            return True
        return False

    def _note(self, at_s: float, what: str) -> None:
        self.log.append(f"{at_s - self._began_s:.0f} s: {what}")

    async def _may(self, kind: str) -> bool:
        if kind in CUTTING and max(self._hits.values(), default=0) >= MOST_HITS:
            return False
        return await asyncio.to_thread(self.faults.may, kind)


def _request(port: int, body: Json) -> Request:
    return Request(port, "/api/inference", body, ENDS_WITHIN_S)


async def exercises(port: int, max_tokens: int, *, stub: bool) -> Exercises:
    """Ask everything once, undisturbed.

    For each prompt whose answer has a piece that it can be cut at, there is a second request with that piece as a
    stop string.

    Args:
        port: of the application.
        max_tokens: of each answer.
        stub: whether the engines are stubs: they know no stop strings, and have a speed of their own.

    Raises:
        RuntimeError: an answer failed, or its stop string did not cut it there.
    """
    rate = " stub:rate=10" if stub else ""
    base: Json = {"mode": "manual", "power": 10, "temperature": 0, "logprobs": True, "max_tokens": max_tokens}
    own = list(await asyncio.gather(*(_asked(_request(port, base | {"prompt": each + rate})) for each in PROMPTS)))
    if not stub:
        cut = [(each, stop) for each in own if (stop := stop_in(each.whole.text)) is not None]
        requests = [replace(each.request, body=each.request.body | {"stop": [stop]}) for each, stop in cut]
        stopped = await asyncio.gather(*map(_asked, requests))
        for (each, stop), short in zip(cut, stopped, strict=True):
            expected = each.whole.text[: each.whole.text.index(stop)]
            if (short.whole.text, short.whole.finish_reason) != (expected, "stop"):
                raise RuntimeError(f"the stop string {stop!r} made {short.whole.text!r} of {each.whole.text!r}")
        own += stopped
    body: Json = {"model": "eco", "temperature": 0, "max_tokens": max_tokens, "stream": True}
    asked = [body | {"messages": [{"role": "user", "content": each + rate}]} for each in PROMPTS[:2]]
    chats = [Request(port, "/v1/chat/completions", each, ENDS_WITHIN_S) for each in asked]
    return Exercises(own, await asyncio.gather(*map(_chatted, chats)))


async def _asked(request: Request) -> Exercise:
    outcome = await fetch(request, TokenReader(), to_end=True)
    if outcome.error is not None:
        raise RuntimeError(f"an undisturbed answer failed: {outcome.error}")
    return Exercise(request, outcome.reader)


async def _chatted(request: Request) -> Chat:
    outcome = await fetch(request, ChatReader(), to_end=True)
    if outcome.error is not None:
        raise RuntimeError(f"an undisturbed answer failed: {outcome.error}")
    return Chat(request, outcome.reader)


def stop_in(text: str) -> str | None:
    """Return a piece of the text's second half that is not in it before; None: it repeats itself."""
    for start in range(len(text) // 2, len(text) - _STOP_CHARS):
        stop = text[start : start + _STOP_CHARS]
        if text.index(stop) == start and stop.strip():
            return stop
    return None


async def soaked(faults: Faults, streams: int, pause_s: float, seconds: float | None) -> Soak:
    """Deploy the application, ask everything once, and run the streams with faults.

    Args:
        faults: on a cluster without an application.
        streams: how many are open at a time.
        pause_s: mean time between two faults, s.
        seconds: for so long; None: until each kind has happened once.
    """
    await faults.deploy()
    faults.cluster.wait_ready()
    await faults.wait_for(REPLICAS)
    asked = await exercises(faults.cluster.port, MAX_TOKENS, stub=faults.stub)
    soak = Soak(faults, asked, streams, pause_s, faults.draw)
    await (soak.run(seconds) if seconds is not None else soak.run_each())
    return soak


def figures(soak: Soak) -> dict[str, Value]:
    """Return what a run has shown."""
    tally = soak.tally
    counts: dict[str, Value] = {"streams": tally.streams, "kills": sum(soak.kills.values()), "lost": tally.lost}
    counts |= {"refused": tally.refused, "doubled": tally.doubled, "differing": tally.differing, "ties": tally.ties}
    counts |= {"max_gap_s": round(tally.max_gap_s, 1), "resumed": tally.resumed}
    return counts | {"v1_streams": tally.v1_streams, "v1_cut": tally.v1_cut}
