"""Measure what the router agent adds to the time to first token: with the agent, without it, and without it again.

Three copies of the application with stub engines run in one Serve instance and differ only in the agent. `on` explains
every plan (`single_shot`) through a fake Messages API on loopback (`bench/load/claude_api.py`); `off` and `off again`
have no agent; `not asked` is the copy with the agent and requests without reasoning. In turn, in an order that rotates,
each answers a batch, with one stream and with eight. The difference between `off again` and `off` is the noise of two
equal processes. `on` is compared with both together (`added`), and with `not asked`, which is the same process
(`added_in_process`). Intervals are 95% by bootstrap, of the difference of medians.

HAProxy stands in front, as with `make serve`.

    python -m bench.agent [--quick] [--json FILE]
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np

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
    """The times of one variant at one load."""

    ttft_ms: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of two medians, ms, with its interval."""

    ms: float
    low_ms: float
    high_ms: float

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Difference:
        """Return the median of `ours` minus that of `theirs`; the resampling is seeded."""
        dice = np.random.default_rng(0)
        resampled = [np.median(dice.choice(times, (RESAMPLES, len(times))), axis=1) for times in (ours, theirs)]
        low_ms, high_ms = np.percentile(resampled[0] - resampled[1], (2.5, 97.5)).tolist()
        return cls(median(ours) - median(theirs), low_ms, high_ms)


def arguments(agent: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a copy of the application with stub engines."""
    return {
        "profile": "local",
        "inference_mode": "mock",
        "stub": {"tokens_per_s": 50.0},
        "tiers": {"eco": {"replicas": {"min": 1, "max": 1}, "max_ongoing_requests": 2 * max(STREAMS)}},
        "ingress": {"replicas": 1},
        "agent": dict(agent),
    }


def stand_in(port: int) -> Server:
    """Return the fake Messages API."""
    return Server("claude", [sys.executable, "-m", "bench.load.claude_api", str(port), "--first", "0.1"], port, "/")


def request(port: int, variant: Variant, turn: int) -> Request:
    """Return one request; it asks for an explanation, except for `not asked`."""
    request = request_for(
        "inference",
        port,
        PROMPTS[turn % len(PROMPTS)],
        MAX_TOKENS,
        mode="manual",
        power=POWER,
        reasoning=variant != "not asked",
        spec={"enabled": False},  # the stub's first step has more or fewer tokens and takes the same time
    )
    return dataclasses.replace(request, path=PREFIXES[variant].rstrip("/") + request.path)


async def batch(port: int, variant: Variant, streams: int, sample: Sample) -> None:
    """Collect the times of answers, `streams` at a time, into the sample.

    Raises:
        RuntimeError: an answer failed.
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
    """Return the figures of one load."""
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
    """Return whether the agent adds at most the difference that two runs without it may have."""
    added, edges = figures["added_ttft_p50_ms"], (figures["noise_low_ms"], figures["noise_high_ms"])
    assert isinstance(added, float)
    return added <= max(abs(edge) for edge in edges if isinstance(edge, float))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if an answer was not explained."""
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
