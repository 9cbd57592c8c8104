"""Kill what writes the streams of `/api/inference`, and count what their readers lose.

32 streams (16 with `--quick`) run all the time for ten minutes (one) against the eco tier, which has two replicas, with
drafts, stop strings and emoji; greedy, so that each answer has a known text: the one of an undisturbed run before. At
random moments one of these happens, when every stream that is open was hit at most once before:

engine       SIGKILL of an engine core: the replica ends with it
replica      SIGKILL of a replica and of its engine
silence      SIGSTOP of a replica for 8 s: it is lost after 5 s, and goes on writing to nobody
controller   SIGKILL of Serve's controller, which Ray starts again

lost        streams that did not end with `done`
doubled     streams with more or fewer tokens than the server counts, or with more than one end
differing   streams with other tokens than the undisturbed run
ties        of these, the ones whose first other token was as likely as the undisturbed one, by less than 0.001 of
            its log-probability: there a prompt that is read gives another last bit than one that was decoded
max_gap_s   longest time between two tokens of a stream

    python -m bench.soak [--quick] [--stub] [--seed N] [--json FILE]
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from psutil import NoSuchProcess, Process

from bench.load.client import Request, fetch
from bench.load.processes import command_of
from bench.load.servers import Server, application, get_json, replica_trees, running
from bench.load.sse import EventSplitter
from bench.reporting.options import parser
from bench.reporting.report import Value, print_report, provenance, write_json

TIER: Final = "eco"
REPLICAS: Final = 2
MOST_HITS: Final = 2
SILENT_S: Final = 8.0
TIE: Final = 1e-3
FAULTS: Final = ("engine", "replica", "silence", "controller")
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
STOPS: Final = (("\n\n\n",), ("zebra", "xylophone"), ())
Json = dict[str, Any]
Draw = random.Random


class TokenReader:
    """Keeps the tokens of a stream, when they came, and how it ended."""

    def __init__(self) -> None:
        self.ended = False
        self.error: str | None = None
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.times_s: list[float] = []
        self.ends = 0
        self.resumed = 0
        self.counted: int | None = None
        self._splitter = EventSplitter()

    def feed(self, data: bytes, now_s: float) -> None:
        """Take body bytes that arrived at `now_s` (monotonic clock)."""
        for payload in self._splitter.feed(data):
            event: Json = orjson.loads(payload)
            kind, given = event["type"], event["data"]
            if kind == "token":
                self.ids.append(given["token_id"])
                self.logprobs.append(given["logprob"])
                self.times_s.append(now_s)
            elif kind == "status":
                self.resumed += given["state"] == "resumed"
            elif kind == "metrics":
                self.counted = given["completion_tokens"]
            elif kind in ("done", "error"):
                self.ends += 1
                self.ended = True
                if kind == "error":
                    self.error = f"{given['code']}: {given['message']}"

    @property
    def gap_s(self) -> float:
        """The longest time between two tokens, s."""
        return max(
            (later - earlier for earlier, later in zip(self.times_s, self.times_s[1:], strict=False)), default=0.0
        )


@dataclass(slots=True)
class Tally:
    """What became of the streams."""

    streams: int = 0
    lost: int = 0
    doubled: int = 0
    differing: int = 0
    ties: int = 0
    resumed: int = 0
    max_gap_s: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, read: TokenReader, whole: TokenReader) -> None:
        """Add a stream that has ended.

        Args:
            read: what its client got.
            whole: of the same request, undisturbed.
        """
        self.streams += 1
        self.resumed += read.resumed
        self.max_gap_s = max(self.max_gap_s, read.gap_s)
        if read.error is not None or not read.ended:
            self.lost += 1
            self.errors[read.error or "no end"] += 1
            return
        doubled = read.ends != 1 or len(read.ids) != read.counted
        self.doubled += doubled
        if read.ids != whole.ids:
            self.differing += 1
            self.ties += not doubled and is_tie(read, whole)


def is_tie(read: TokenReader, whole: TokenReader) -> bool:
    """Return whether two answers part at a token that was as likely as the other's."""
    pairs = enumerate(zip(read.ids, whole.ids, strict=False))
    first = next((position for position, (ours, theirs) in pairs if ours != theirs), None)
    return first is not None and abs(read.logprobs[first] - whole.logprobs[first]) < TIE


@dataclass(slots=True)
class Soak:
    """The streams of one run, and the faults.

    Args:
        server: the application.
        requests: one of each kind.
        whole: their undisturbed answers.
        streams: how many are open at a time.
        pause_s: mean time between two faults, s.
        stub: whether the engines are stubs, which have no engine core.
        draw: random.
    """

    server: Server
    requests: Sequence[Request]
    whole: Sequence[TokenReader]
    streams: int
    pause_s: float
    stub: bool
    draw: Draw
    tally: Tally = field(default_factory=Tally)
    kills: Counter[str] = field(default_factory=Counter)
    _hits: dict[int, int] = field(default_factory=dict)
    """Faults since each open stream began."""

    async def run(self, seconds: float) -> None:
        """Run for so long; streams that are open then are read to their end."""
        ends_s = time.monotonic() + seconds
        killing = asyncio.ensure_future(self._kill_until(ends_s))
        async with asyncio.TaskGroup() as group:
            for number in range(self.streams):
                group.create_task(self._read_until(number, ends_s))
        await killing

    async def _read_until(self, number: int, ends_s: float) -> None:
        while time.monotonic() < ends_s:
            which = self.draw.randrange(len(self.requests))
            self._hits[number] = 0
            reader = TokenReader()
            outcome = await fetch(self.requests[which], reader)
            del self._hits[number]
            reader.error = reader.error or outcome.error
            self.tally.add(reader, self.whole[which])

    async def _kill_until(self, ends_s: float) -> None:
        while (now_s := time.monotonic()) < ends_s:
            pause_s = self.draw.expovariate(1 / self.pause_s)
            await asyncio.sleep(min(ends_s - now_s, pause_s))
            if now_s + pause_s >= ends_s:
                return
            fault = self.draw.choice(FAULTS[1:] if self.stub else FAULTS)
            replicas = self._replicas()
            if fault != "controller" and (len(replicas) < REPLICAS or max(self._hits.values(), default=0) >= MOST_HITS):
                continue  # nobody could go on, or a stream would be hit a third time
            self.kills[fault] += 1
            if fault == "controller":
                _kill(next(p for p in self.server.processes() if command_of(p).startswith("ray::ServeController")))
                continue
            self._hits = {number: hits + 1 for number, hits in self._hits.items()}
            top, engine = self.draw.choice(replicas)
            if fault == "silence":
                await _pause(top, SILENT_S)
            elif fault == "engine":
                _kill(engine)
            else:
                _kill(top, engine)

    def _replicas(self) -> list[tuple[Process, Process]]:
        """Return the running replicas of the tier, each with its engine core (of a stub: itself)."""
        if get_json(self.server.port, "/api/tiers")["tiers"][0]["replicas"]["running"] < REPLICAS:
            return []
        tree = replica_trees(self.server.processes(), (TIER,)).get(TIER, [])
        tops = [process for process in tree if command_of(process).startswith("ray::")]
        if self.stub:
            return [(top, top) for top in tops]
        return [
            (top, core) for top in tops for core in top.children(recursive=True) if "EngineCore" in command_of(core)
        ]


def _kill(*processes: Process) -> None:
    for process in processes:
        with contextlib.suppress(NoSuchProcess):
            process.kill()


async def _pause(process: Process, seconds: float) -> None:
    os.kill(process.pid, signal.SIGSTOP)
    await asyncio.sleep(seconds)
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGCONT)


def requests_to(port: int, max_tokens: int, rate: str) -> list[Request]:
    """Return a request of each kind.

    Args:
        port: of the application.
        max_tokens: of each answer.
        rate: words for the stub engine, which are plain text to others.
    """
    base = {"mode": "manual", "power": 10, "temperature": 0, "logprobs": True, "max_tokens": max_tokens}
    return [
        Request(
            port, "/api/inference", base | {"prompt": prompt + rate, "stop": list(STOPS[place % len(STOPS)])}, 900.0
        )
        for place, prompt in enumerate(PROMPTS)
    ]


async def undisturbed(requests: Sequence[Request]) -> list[TokenReader]:
    """Return the answers to the requests, one after the other."""
    readers = []
    for request in requests:
        reader = TokenReader()
        outcome = await fetch(request, reader)
        if outcome.error is not None:
            raise SystemExit(f"an undisturbed answer failed: {outcome.error}")
        readers.append(reader)
    return readers


def results(soak: Soak) -> dict[str, Value]:
    """Return the figures of a run."""
    tally = soak.tally
    figures: dict[str, Value] = {"streams": tally.streams, "kills": sum(soak.kills.values()), "lost": tally.lost}
    figures |= {"doubled": tally.doubled, "differing": tally.differing, "ties": tally.ties}
    return figures | {"max_gap_s": round(tally.max_gap_s, 1), "resumed": tally.resumed}


def main(arguments: Sequence[str], print_line: Callable[[str], None] = print) -> None:
    """Run the benchmark and print its table."""
    options = parser("bench.soak", __doc__, quick="one minute with 16 streams")
    options.add_argument("--stub", action="store_true", help="stub engines instead of real ones")
    options.add_argument("--seed", type=int, default=1, metavar="N", help="of the faults (default: 1)")
    given = options.parse_args(arguments)
    made_by, draw = provenance(), random.Random(given.seed)
    server = application({"/": _arguments(stub=given.stub)})
    with running(server):
        while get_json(server.port, "/api/tiers")["tiers"][0]["replicas"]["running"] < REPLICAS:
            time.sleep(0.5)
        streams, seconds, pause_s = (16, 60.0, 6.0) if given.quick else (32, 600.0, 15.0)
        requests = requests_to(server.port, 200 if given.stub else 64, " stub:rate=20" if given.stub else "")
        soak = asyncio.run(_soak(server, requests, streams, pause_s, draw, given.stub, seconds))
    figures = results(soak)
    print_report("Streams and faults", [figures], made_by)
    for error, count in soak.tally.errors.most_common():
        print_line(f"{count} x {error}")
    if given.json is not None:
        write_json(given.json, figures | {"faults": dict(soak.kills), "seed": given.seed, "stub": given.stub}, made_by)


async def _soak(
    server: Server, requests: Sequence[Request], streams: int, pause_s: float, draw: Draw, stub: bool, seconds: float
) -> Soak:
    soak = Soak(server, requests, await undisturbed(requests), streams, pause_s, stub, draw)
    await soak.run(seconds)
    return soak


def _arguments(*, stub: bool) -> Json:
    tier = {"max_ongoing_requests": 64, "max_queued_requests": 64, "replicas": {"min": REPLICAS, "max": REPLICAS}}
    return {"profile": "local", "inference_mode": "mock" if stub else "real", "tiers": {TIER: tier}}


if __name__ == "__main__":
    main(sys.argv[1:])
