"""How fast tokens travel from an engine replica through one ingress replica to 64 clients, engine cost aside.

Three runs of the application on its stub engine, all without speculation:

1. as fast as it can: tokens/s in all, over a fixed window under constant load;
2. the same with one item a token between replica and ingress (`relay.max_tokens_per_item: 1`), for the ratio;
3. 50 tokens/s a stream: how much later than 20 ms after its predecessor a token arrives.

The client is one process that counts markers in what it reads: alone it takes 200,000 tokens/s (one event a read) to
2,900,000 (32 events a read) on two cores, so it needs no company. It shares the machine with the server; what CPU it
took is in the JSON as `client_cpu_share` (of one core).

    python -m bench.relay [--quick] [--json FILE]
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.client import Flood, Request, request_for, run_flood
from bench.options import parser
from bench.report import Value, print_report, provenance, write_json
from bench.servers import application, running
from bench.sse import added_gaps_s, tokens_between
from bench.stats import percentile

STREAMS: Final = 64
SLOW_TOKENS_PER_S: Final = 50.0
MAX_TOKENS: Final = 1500
TIER: Final = "eco"
POWER: Final = 10


@dataclass(frozen=True, slots=True)
class Run:
    """One configuration of the application."""

    name: str
    stub_tokens_per_s: float
    max_tokens_per_item: int | None
    """None: as the application comes."""

    def arguments(self) -> dict[str, Any]:
        """What it asks of the application's config."""
        arguments: dict[str, Any] = {
            "profile": "local",
            "inference_mode": "mock",
            "stub": {"tokens_per_s": self.stub_tokens_per_s},
            "tiers": {TIER: {"max_ongoing_requests": 2 * STREAMS, "replicas": {"min": 1, "max": 1}}},
            "ingress": {"replicas": 1},
        }
        if self.max_tokens_per_item is not None:
            arguments["relay"] = {"max_tokens_per_item": self.max_tokens_per_item}
        return arguments


FAST: Final = Run("as fast as it can", 0.0, None)
ITEM_A_TOKEN: Final = Run("one item a token", 0.0, 1)
SLOW: Final = Run(f"{SLOW_TOKENS_PER_S:g} tokens/s a stream", SLOW_TOKENS_PER_S, None)
RUNS: Final = (FAST, ITEM_A_TOKEN, SLOW)


@dataclass(frozen=True, slots=True)
class Result:
    """What one run gave."""

    tokens_per_s: float
    added_itl_p50_ms: float
    added_itl_p99_ms: float
    """Against the gap that the engine makes; for an unlimited engine against none at all."""
    client_cpu_share: float
    """CPU time of the client over wall time: of one core."""


def evaluate(flood: Flood, expected_gap_s: float) -> Result:
    """Rates and delays within the measured window."""
    seconds = flood.end_s - flood.start_s
    tokens = sum(tokens_between(list(stream), flood.start_s, flood.end_s) for stream in flood.arrivals)
    if not tokens:
        raise ValueError("no token event arrived: is its JSON compact, with `type` first?")
    gaps = [
        gap
        for stream in flood.arrivals
        for gap in added_gaps_s(
            [arrival for arrival in stream if flood.start_s <= arrival[0] < flood.end_s], expected_gap_s
        )
    ]
    return Result(
        tokens_per_s=tokens / seconds,
        added_itl_p50_ms=1000 * percentile(gaps, 50),
        added_itl_p99_ms=1000 * percentile(gaps, 99),
        client_cpu_share=flood.client_cpu_s / seconds,
    )


def results_json(results: dict[str, Result]) -> dict[str, float]:
    """The three figures that the benchmark is for."""
    return {
        "tokens_per_s": results[FAST.name].tokens_per_s,
        "ratio_to_item_a_token": results[FAST.name].tokens_per_s / results[ITEM_A_TOKEN.name].tokens_per_s,
        "added_itl_p99_ms": results[SLOW.name].added_itl_p99_ms,
    }


def _measure(run: Run, warmup_s: float, duration_s: float) -> Flood:
    app = application(run.arguments())
    turn = itertools.count()

    def make_request(stream: int) -> Request:
        prompt = f"stream {stream}, answer {next(turn)}"
        return request_for(
            "inference", app.port, prompt, MAX_TOKENS, mode="manual", power=POWER, spec={"enabled": False}
        )

    with running(app, timeout_s=120):
        return asyncio.run(run_flood(make_request, STREAMS, warmup_s, duration_s))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 when a stream failed."""
    options = parser("bench.relay", __doc__, "windows of 3 s instead of 15 s")
    args = options.parse_args(argv)
    made_by = provenance()
    duration_s = 3.0 if args.quick else 15.0
    results: dict[str, Result] = {}
    errors: list[str] = []
    for run in RUNS:
        print(f"{run.name} ...", file=sys.stderr)
        flood = _measure(run, warmup_s=2.0, duration_s=duration_s)
        if flood.errors:
            errors += flood.errors
            continue
        results[run.name] = evaluate(flood, 1 / run.stub_tokens_per_s if run.stub_tokens_per_s else 0.0)
    for error in errors[:5]:
        print(f"failed: {error}", file=sys.stderr)
    if errors:
        return 1
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
        write_json(args.json, {**figures, "runs": rows, "window_s": duration_s}, made_by)
    return 0


if __name__ == "__main__":
    sys.exit(main())
