"""Measure how fast tokens travel from an engine replica through one ingress replica to 64 clients.

One Serve instance runs two applications with the same stub engine: ours, and the usual way, in which each token is an
item of a Serve stream (`bench/load/one_item_per_token.py`). Each in turn has 64 streams under constant load, without
speculation, with one ingress replica, for a fixed window:

1. ours, engine at full speed: tokens/s in all;
2. one item per token, engine at full speed: for the ratio;
3. ours, engine at 50 tokens/s per stream: how much more than 20 ms after its predecessor each token arrives.

The client is one process that counts markers in its input. Alone on two cores it reads 200,000 tokens/s (one event per
read) to 2,900,000 (32 events per read), so one is enough. It shares the machine with the server; `client_cpu_share` in
the JSON is its CPU time, of one core.


    python -m bench.relay [--quick] [--json FILE]
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.load.client import Flood, Request, request_for, run_flood
from bench.load.servers import application, running
from bench.load.sse import added_gaps_s
from bench.reporting.options import parser
from bench.reporting.report import Value, print_report, provenance, write_json
from bench.reporting.stats import percentile

STREAMS: Final = 64
SLOW_TOKENS_PER_S: Final = 50.0
MAX_TOKENS: Final = 1500
TIER: Final = "eco"
POWER: Final = 10


ARGUMENTS: Final[dict[str, Any]] = {
    "profile": "local",
    "inference_mode": "mock",
    "stub": {"tokens_per_s": 0.0},
    "tiers": {TIER: {"max_ongoing_requests": 2 * STREAMS, "replicas": {"min": 1, "max": 1}}},
    "ingress": {"replicas": 1},
}


@dataclass(frozen=True, slots=True)
class Run:
    """One kind of load."""

    name: str
    prefix: str
    """Route prefix of the application under load."""
    tokens_per_s: float
    """Engine speed per stream; 0 is full speed."""

    @property
    def expected_gap_s(self) -> float:
        """Time between tokens in the engine."""
        return 1 / self.tokens_per_s if self.tokens_per_s else 0.0


FAST: Final = Run("as fast as it can", "/", 0.0)
ITEM_A_TOKEN: Final = Run("one item a token", "/item-a-token", 0.0)
SLOW: Final = Run(f"{SLOW_TOKENS_PER_S:g} tokens/s a stream", "/", SLOW_TOKENS_PER_S)
RUNS: Final = (FAST, ITEM_A_TOKEN, SLOW)


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of one run."""

    tokens_per_s: float
    added_itl_p50_ms: float
    added_itl_p99_ms: float
    """Over the engine's own gap, which is 0 at full speed."""
    client_cpu_share: float
    """CPU time of the client over wall time."""


def evaluate(floods: Sequence[Flood], expected_gap_s: float) -> Result:
    """Return rates and delays within the measured windows of all repetitions."""
    seconds = sum(flood.end_s - flood.start_s for flood in floods)
    tokens = 0
    gaps: list[float] = []
    for flood in floods:
        for stream in flood.arrivals:
            within = [arrival for arrival in stream if flood.start_s <= arrival[0] < flood.end_s]
            tokens += sum(count for _, count in within)
            gaps += added_gaps_s(within, expected_gap_s)
    if not tokens:
        raise ValueError("no token event arrived: is its JSON compact, with `type` first?")
    return Result(
        tokens_per_s=tokens / seconds,
        added_itl_p50_ms=1000 * percentile(gaps, 50),
        added_itl_p99_ms=1000 * percentile(gaps, 99),
        client_cpu_share=sum(flood.client_cpu_s for flood in floods) / seconds,
    )


def results_json(results: dict[str, Result]) -> dict[str, float]:
    """Return the benchmark's three figures."""
    return {
        "tokens_per_s": results[FAST.name].tokens_per_s,
        "ratio_to_item_a_token": results[FAST.name].tokens_per_s / results[ITEM_A_TOKEN.name].tokens_per_s,
        "added_itl_p99_ms": results[SLOW.name].added_itl_p99_ms,
    }


def measure(run: Run, port: int, warmup_s: float, duration_s: float) -> Flood:
    """Measure one window under constant load."""
    turn = itertools.count()

    def make_request(stream: int) -> Request:
        # The stub reads its speed from the prompt.
        prompt = f"stub:rate={run.tokens_per_s:g} stream {stream}, answer {next(turn)}"
        request = request_for(
            "inference", port, prompt, MAX_TOKENS, mode="manual", power=POWER, spec={"enabled": False}
        )
        return dataclasses.replace(request, path=run.prefix.rstrip("/") + request.path)

    return asyncio.run(run_flood(make_request, STREAMS, warmup_s, duration_s))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a stream failed."""
    options = parser("bench.relay", __doc__, "one window of 3 s per load instead of three of 8 s")
    args = options.parse_args(argv)
    made_by = provenance()
    repetitions, duration_s = (1, 3.0) if args.quick else (3, 8.0)
    floods: dict[Run, list[Flood]] = {run: [] for run in RUNS}
    app = application({"/": ARGUMENTS}, others={ITEM_A_TOKEN.prefix: "bench.load.one_item_per_token:build"})
    with running(app, timeout_s=180):
        for repetition in range(1, repetitions + 1):
            for run in RUNS:
                print(f"repetition {repetition} of {repetitions}: {run.name}", file=sys.stderr)
                flood = measure(run, app.port, 2.0, duration_s)
                floods[run].append(flood)
                if flood.errors:
                    print(f"failed: {flood.errors[0]}", file=sys.stderr)
                    return 1
    results = {run.name: evaluate(floods[run], run.expected_gap_s) for run in RUNS}
    rows: list[dict[str, Value]] = [
        {
            "stub engine": run.name,
            "streams": STREAMS,
            "tokens_per_s": results[run.name].tokens_per_s,
            "added_itl_p50_ms": results[run.name].added_itl_p50_ms if run is SLOW else None,
            "added_itl_p99_ms": results[run.name].added_itl_p99_ms if run is SLOW else None,
            "client_cpu_share": results[run.name].client_cpu_share,
        }
        for run in RUNS
    ]
    print_report("Token relay through one ingress replica", rows, made_by)
    figures = results_json(results)
    print(f"\nratio_to_item_a_token: {figures['ratio_to_item_a_token']:.1f}")
    if args.json:
        windows = {"windows": repetitions, "window_s": duration_s}
        write_json(args.json, {**figures, "runs": rows, **windows}, made_by)
    return 0


if __name__ == "__main__":
    sys.exit(main())
