"""What the router agent costs the first token: the application with the agent on, off, and off once more.

Three copies of the application with stub engines live in one Serve instance and differ in the agent only: `on` explains
every plan (`single_shot`) through a stand-in for the Messages API on loopback (`bench/load/claude_api.py`), `off` and
`off again` have none; `not asked` is the copy with the agent, asked for no reasoning. In turn, in an order that
rotates, each answers a batch, for one stream and for eight. What `off again` differs from `off` is the noise: of two
processes that do the same. `on` is measured against both together (`added`), and against `not asked`, which is the same
process (`added_in_process`). Intervals are 95% by bootstrap, of the difference of medians.

HAProxy stands in front, as with `make serve`.

    python -m bench.agent [--quick] [--json FILE]
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from bench.load.client import HOST, PROMPTS, Request, fetch, request_for
from bench.load.servers import Server, application, free_port, get_json, running
from bench.load.sse import EventReader
from bench.reporting.options import parser
from bench.reporting.report import Value, print_report, provenance, write_json
from bench.reporting.stats import median, percentile

Variant = Literal["off", "off again", "on", "not asked"]
PREFIXES: Final[Mapping[Variant, str]] = {"off": "/", "off again": "/again", "on": "/agent", "not asked": "/agent"}
STREAMS: Final = (1, 8)
POWER: Final = 10
MAX_TOKENS: Final = 24
ANSWERS_A_STREAM: Final = 2
RESAMPLES: Final = 2000


@dataclass
class Sample:
    """What one variant took at one load."""

    ttft_ms: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Difference:
    """Of two medians, ms, with its interval."""

    ms: float
    low_ms: float
    high_ms: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Difference:
        """Median of `ours` less that of `theirs`; the resampling is seeded."""
        dice = random.Random(0)
        differences = [
            median(dice.choices(ours, k=len(ours))) - median(dice.choices(theirs, k=len(theirs)))
            for _ in range(RESAMPLES)
        ]
        return cls(median(ours) - median(theirs), percentile(differences, 2.5), percentile(differences, 97.5))


def arguments(agent: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the application with stub engines."""
    return {
        "profile": "local",
        "inference_mode": "mock",
        "stub": {"tokens_per_s": 50.0},
        "tiers": {"eco": {"replicas": {"min": 1, "max": 1}, "max_ongoing_requests": 2 * max(STREAMS)}},
        "ingress": {"replicas": 1},
        "agent": dict(agent),
    }


def stand_in(port: int) -> Server:
    """The Messages API."""
    return Server("claude", [sys.executable, "-m", "bench.load.claude_api", str(port), "--first", "0.1"], port, "/")


def request(port: int, variant: Variant, turn: int) -> Request:
    """One prompt; an explanation is wanted but for `not asked`."""
    asked = request_for(
        "inference",
        port,
        PROMPTS[turn % len(PROMPTS)],
        MAX_TOKENS,
        mode="manual",
        power=POWER,
        reasoning=variant != "not asked",
        spec={"enabled": False},  # the stub's first step has more or fewer tokens, and takes as long
    )
    return dataclasses.replace(asked, path=PREFIXES[variant].rstrip("/") + asked.path)


async def batch(port: int, variant: Variant, streams: int, sample: Sample) -> None:
    """Answers, `streams` at a time, into the sample.

    Raises:
        RuntimeError: one failed.
    """

    async def stream(index: int) -> None:
        for turn in range(ANSWERS_A_STREAM):
            reader = EventReader("inference")
            outcome = await fetch(request(port, variant, index + turn), reader)
            if outcome.error is not None or not reader.token_times_s:
                raise RuntimeError(f"{variant}: {outcome.error or 'answer without a token'}")
            sample.ttft_ms.append(1000 * (reader.token_times_s[0] - outcome.start_s))

    await asyncio.gather(*(stream(index) for index in range(streams)))


def row(streams: int, samples: Mapping[Variant, Sample]) -> dict[str, Value]:
    """The figures of one load."""
    off, again, on, silent = (samples[variant].ttft_ms for variant in PREFIXES)
    noise, added, inside = Difference.of(again, off), Difference.of(on, [*off, *again]), Difference.of(on, silent)
    return {
        "streams": streams,
        "answers": len(on),
        "off_ttft_p50_ms": median([*off, *again]),
        "on_ttft_p50_ms": median(on),
        "added_ttft_p50_ms": added.ms,
        "added_low_ms": added.low_ms,
        "added_high_ms": added.high_ms,
        "added_in_process_p50_ms": inside.ms,
        "added_in_process_low_ms": inside.low_ms,
        "added_in_process_high_ms": inside.high_ms,
        "noise_p50_ms": noise.ms,
        "noise_low_ms": noise.low_ms,
        "noise_high_ms": noise.high_ms,
        "off_ttft_p95_ms": percentile([*off, *again], 95),
        "on_ttft_p95_ms": percentile(on, 95),
    }


def within_noise(figures: Mapping[str, Value]) -> bool:
    """Whether the agent adds no more than what two runs without it may differ by."""
    added, edges = figures["added_ttft_p50_ms"], (figures["noise_low_ms"], figures["noise_high_ms"])
    assert isinstance(added, float)
    return added <= max(abs(edge) for edge in edges if isinstance(edge, float))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 when the agent explained nothing."""
    options = parser("bench.agent", __doc__, "two rounds instead of thirty")
    args = options.parse_args(argv)
    made_by = provenance()
    rounds = 2 if args.quick else 30
    claude = stand_in(free_port())
    on = {"mode": "single_shot", "base_url": f"http://{HOST}:{claude.port}"}
    variants: dict[str, dict[str, Any]] = {
        PREFIXES["off"]: {"mode": "off"},
        PREFIXES["off again"]: {"mode": "off"},
        PREFIXES["on"]: on,
    }
    app = application({prefix: arguments(agent) for prefix, agent in variants.items()})
    app.env = {**app.env, "ANTHROPIC_API_KEY": "bench"}
    samples: dict[int, dict[Variant, Sample]] = {
        streams: {variant: Sample() for variant in PREFIXES} for streams in STREAMS
    }
    names = list(PREFIXES)
    with running(claude, app, timeout_s=180):
        for name in names:
            asyncio.run(batch(app.port, name, max(STREAMS), Sample()))  # connections, first imports
        warmed = get_json(claude.port, "/")["answered"]
        for turn in range(rounds):
            print(f"round {turn + 1} of {rounds}", file=sys.stderr)
            for streams in STREAMS:
                for name in names[turn % 4 :] + names[: turn % 4]:
                    asyncio.run(batch(app.port, name, streams, samples[streams][name]))
        explained = get_json(claude.port, "/")["answered"] - warmed
    rows = [row(streams, samples[streams]) for streams in STREAMS]
    print_report("What the router agent adds to the first token", rows, made_by)
    asked = sum(len(samples[streams]["on"].ttft_ms) for streams in STREAMS)
    verdict = all(within_noise(figures) for figures in rows)
    print(f"\nexplained: {explained} of {asked} answers; within noise: {'yes' if verdict else 'no'}")
    if args.json:
        whole = {"rows": rows, "explained": explained, "asked": asked, "within_noise": verdict, "rounds": rounds}
        write_json(args.json, whole, made_by)
    return 0 if explained == asked else 1


if __name__ == "__main__":
    sys.exit(main())
