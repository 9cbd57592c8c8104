"""How long does a request wait beside 32 streams of somebody else?

A small user sends a short request every 2 s to one tier of this application; a large one keeps 32 streams open there.

alone       nobody else
other key   the large one has a key of its own
batch       all have one key, and the 32 are `priority: batch`
same key    all have one key: nothing tells them apart, so the small one waits as everybody did before there were keys

ttft_p50_ms, ttft_max_ms   the small user's time to the first token
step_ms                    median time between two tokens of a large stream: an engine step
within                     share of its requests that began within its median time alone plus two such steps
steps_p50, steps_max       engine steps that ended from a small request's arrival to its first token: the one under way
                           when it came, and its own at least. Some are long, as many large prompts begin together
refused                    the large user's requests that were refused, since a quarter or an eighth is kept for others

    python -m bench.fairness [--quick] [--json FILE]
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.load.client import PROMPTS, Outcome, Request, Stream, fetch, request_for, stream_of
from bench.load.servers import application, running
from bench.load.sse import EventReader
from bench.reporting.options import parser
from bench.reporting.report import Value, print_report, provenance, write_json
from bench.reporting.stats import median
from serve_app.auth.key_file import write_keys
from serve_app.auth.keys import KeyList, make_key, utc_now

STREAMS: Final = 32
EVERY_S: Final = 2.0
SHORT: Final = 4
"""Tokens of a small answer."""
LONG: Final = 256
_FULL_AFTER_S: Final = 15.0
"""Time after which all of the large user's streams run that may, s."""
TIER: Final = {"mode": "manual", "power": 10, "spec": {"enabled": False}}


class Way(NamedTuple):
    """One row."""

    name: str
    large: str | None
    """Whose key the large user has; None: it is not there."""
    body: dict[str, Any]
    """Further fields of its requests."""


WAYS: Final = (
    Way("alone", None, {}),
    Way("other key", "large", {}),
    Way("batch", "small", {"priority": "batch"}),
    Way("same key", "small", {}),
)


def _request(port: int, key: str, turn: int, tokens: int, **body: Any) -> Request:
    request = request_for("inference", port, PROMPTS[turn % len(PROMPTS)], tokens, **TIER, **body)
    return Request(request.port, request.path, request.body, request.timeout_s, key)


@dataclass(slots=True)
class Crowd:
    """What the large user saw."""

    token_times_s: list[list[float]] = field(default_factory=list)
    """By stream, by the monotonic clock."""
    refusals: list[str] = field(default_factory=list)

    @property
    def step_ms(self) -> float | None:
        """Median time between two tokens of a stream; None: there was no stream."""
        gaps_s = [then - first for times in self.token_times_s for first, then in itertools.pairwise(times)]
        return 1000 * median([gap for gap in gaps_s if gap > 0]) if gaps_s else None

    def steps(self, answer: Stream) -> int:
        """Return how many steps ended from an answer's request to its first token."""
        first_s = answer.start_s + answer.ttft_s
        return max(sum(answer.start_s < at_s <= first_s for at_s in times) for times in self.token_times_s)


async def keep_open(port: int, key: str, crowd: Crowd, **body: Any) -> None:
    """Keep the large user's streams open until this is cancelled.

    Args:
        port: of the server.
        key: of the large user.
        crowd: takes what it sees.
        body: further fields of its requests.
    """
    turns = itertools.count()

    async def one() -> None:
        while True:
            reader = EventReader("inference")
            try:
                outcome: Outcome[EventReader] = await fetch(_request(port, key, next(turns), LONG, **body), reader)
            finally:
                crowd.token_times_s.append(list(reader.token_times_s))
            if outcome.error is not None:
                crowd.refusals.append(outcome.error)
                await asyncio.sleep(1.0)

    async with asyncio.TaskGroup() as group:
        for _ in range(STREAMS):
            group.create_task(one())


async def measure(port: int, way: Way, keys: dict[str, str], requests: int) -> tuple[list[Stream], Crowd]:
    """Return the small user's answers, and what the large one saw.

    Raises:
        SystemExit: an answer to the small user failed.
    """
    crowd = Crowd()
    others: asyncio.Task[None] | None = None
    if way.large is not None:
        others = asyncio.create_task(keep_open(port, keys[way.large], crowd, **way.body))
        await asyncio.sleep(_FULL_AFTER_S)

    async def one(turn: int) -> Stream:
        await asyncio.sleep(turn * EVERY_S)
        answer = stream_of(await fetch(_request(port, keys["small"], turn, SHORT), EventReader("inference")))
        if isinstance(answer, str):
            raise SystemExit(f"an answer failed: {answer}")
        return answer

    answers = await asyncio.gather(*(one(turn) for turn in range(requests)))
    if others is not None:
        others.cancel()
        await asyncio.gather(others, return_exceptions=True)
    return list(answers), crowd


def row(way: Way, answers: Sequence[Stream], crowd: Crowd, alone_ms: float) -> dict[str, Value]:
    """Return the figures of one way."""
    ttfts = [1000 * answer.ttft_s for answer in answers]
    step_ms = crowd.step_ms
    within = [ttft <= alone_ms + 2 * step_ms for ttft in ttfts] if step_ms is not None else []
    steps = [crowd.steps(answer) for answer in answers] if step_ms is not None else []
    return {
        "large user": way.name,
        "requests": len(ttfts),
        "ttft_p50_ms": median(ttfts),
        "ttft_max_ms": max(ttfts),
        "step_ms": step_ms,
        "within": sum(within) / len(within) if within else None,
        "steps_p50": median(steps) if steps else None,
        "steps_max": max(steps, default=None),
        "refused": len(crowd.refusals),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    options = parser("bench.fairness", __doc__, quick="5 requests of the small user instead of 15")
    given = options.parse_args(argv)
    made_by = provenance()
    now = utc_now()
    made = {name: make_key(name, "infer", now) for name in ("small", "large")}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys.json"
        write_keys(file, KeyList(version=1, keys=tuple(new.key for new in made.values())))
        arguments = {
            "profile": "local",
            "inference_mode": "real",
            "auth": {"mode": "keys", "keys_file": str(file)},
        }
        server = application({"/": arguments}, ready="/readyz")
        keys = {name: new.secret for name, new in made.items()}
        rows: list[dict[str, Value]] = []
        with running(server):
            asyncio.run(measure(server.port, WAYS[0], keys, 3))  # warms up
            alone_ms = 0.0
            for way in WAYS:
                print(f"{way.name}: {5 if given.quick else 15} requests", file=sys.stderr)
                answers, crowd = asyncio.run(measure(server.port, way, keys, 5 if given.quick else 15))
                if way.large is None:
                    alone_ms = 1000 * median([answer.ttft_s for answer in answers])
                rows.append(row(way, answers, crowd, alone_ms))
    print_report("A short request beside 32 streams", rows, made_by)
    if given.json is not None:
        write_json(given.json, {"rows": rows}, made_by)
    return 0


if __name__ == "__main__":
    sys.exit(main())
