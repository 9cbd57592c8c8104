"""Send the application 10,000 requests that no client should send, and look at every answer and at what is left.

Hypothesis draws them from the schemas of the routes: valid requests, nearly valid ones, bodies that are no JSON, odd
methods, paths and headers, HTTP that is broken on the wire (cut, contradicting, smuggled, slow, of another age), and
clients that leave. They go through HAProxy and the ingress to stub engines, 16 at a time.

A fault is: a 5xx that is not a 503 with a code of docs/api.md; an error without the form of its API, or that shows the
inside; a valid request that is not served; a body that is no JSON and not refused; a stream that does not end exactly
once; more answers than requests; no answer within a minute. After every 2,000 requests: open requests, memory and
file descriptors of the processes, once all is quiet.

The pool is shown by itself: it keeps the records of an hour's decisions, at most 64 MiB.

    python -m bench.fuzz [--quick] [--requests N] [--seed N] [--json FILE]
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from bench.fuzzing.footprint import Footprint, footprint
from bench.fuzzing.requests import draw_cases
from bench.fuzzing.run import Tally, send_all
from bench.load.servers import Server, application, running
from bench.reporting.options import parser
from bench.reporting.report import Value, print_report, provenance, write_json
from router.registry import TIER_NAMES

Json = dict[str, Any]

REQUESTS: Final = 10_000
QUICK_REQUESTS: Final = 500
MEASURED_EVERY: Final = 2_000
WITHIN_S: Final = 60.0
MOST_GROWTH_MB: Final = 20.0
"""Growth of ingress, engines and HAProxy together from the first half of the measurements to the second, by the least
of each, MB. A request that is never freed has its task, its buffers and its body: more than 10 kB, so 4,000 of them are
over 40 MB. The least count, as Python frees cycles only when many have gathered: the ingress varies by 40 MB. The
engines gain some MB without a leak: Serve keeps up to 1000 log records a replica, and malloc keeps what it has free."""
MOST_FDS: Final = 8
"""More file descriptors than after the first measurement, of all processes: HAProxy keeps a few connections."""
_SHOWN: Final = 20
"""Distinct faults that are printed."""


def fuzz(server: Server, requests: int, seed: int) -> tuple[Tally, list[Footprint]]:
    """Send so many requests to a running server; return what came back, and what it held on the way."""
    cases, tally = draw_cases(requests, seed), Tally()
    prints = [footprint(server, 0)]
    for start in range(0, requests, MEASURED_EVERY):
        asyncio.run(send_all(cases[start : start + MEASURED_EVERY], server.port, tally, WITHIN_S, start))
        prints.append(footprint(server, min(requests, start + MEASURED_EVERY)))
    return tally, prints


def left(prints: Sequence[Footprint]) -> list[str]:
    """Return what a run has left in the server, in words.

    Args:
        prints: at the beginning, after the first requests, ..., at the end.
    """
    end, warm = prints[-1], prints[1]
    found = []
    if end.open_requests or end.engine_requests:
        found.append(f"{end.open_requests} requests are open at the ingress, {end.engine_requests} in the engines")
    if (more := sum(end.fds.values()) - sum(warm.fds.values())) > MOST_FDS:
        found.append(f"{more} more file descriptors than after {warm.requests} requests")
    if (grown_mb := growth_mb(prints)) is not None and grown_mb > MOST_GROWTH_MB:
        found.append(f"{grown_mb:.0f} MB more than in the first half")
    return found


def growth_mb(prints: Sequence[Footprint]) -> float | None:
    """Return how much memory grew from the first half of a run to the second, MB; None: the run was too short.

    Args:
        prints: at the beginning, which does not count, after the first requests, ..., at the end.
    """
    used = [_memory_mb(held) for held in prints[1:]]
    half = len(used) // 2
    return min(used[half:]) - min(used[:half]) if half >= 2 else None


def _memory_mb(held: Footprint) -> float:
    return sum(used for name, used in held.memory_mb.items() if name != "pool")


def results(tally: Tally, prints: Sequence[Footprint]) -> dict[str, Value]:
    """Return the figures of a run."""
    total, grown_mb = list(tally.rows())[-1], growth_mb(prints)
    end, warm = prints[-1], prints[1]
    return {
        "requests": total["requests"],
        "other_5xx": total["other 5xx"],
        "hangs": total["hangs"],
        "faults": len(tally.faults),
        "slowest_s": round(tally.slowest_s, 1),
        "open_after": end.open_requests + end.engine_requests,
        "mb_warm": round(_memory_mb(warm), 1),
        "mb_after": round(_memory_mb(end), 1),
        "growth_mb": None if grown_mb is None else round(grown_mb, 1),
        "fds_warm": sum(warm.fds.values()),
        "fds_after": sum(end.fds.values()),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its tables; return 1 if there was any fault."""
    options = parser("bench.fuzz", __doc__, quick=f"{QUICK_REQUESTS} requests")
    options.add_argument("--requests", type=int, metavar="N", help=f"how many (default: {REQUESTS})")
    options.add_argument("--seed", type=int, default=1, metavar="N", help="of the requests (default: 1)")
    given = options.parse_args(argv)
    requests = (QUICK_REQUESTS if given.quick else REQUESTS) if given.requests is None else given.requests
    if requests < 1:
        options.error(f"--requests: got {requests}, must be at least 1")
    made_by = provenance()
    server = application({"/": settings()})
    with running(server):
        tally, prints = fuzz(server, requests, given.seed)
    rows, figures = list(tally.rows()), results(tally, prints)
    print_report("Fuzzed requests", rows, made_by)
    print_report("What the server held", [held.row() for held in prints], made_by)
    print_report("In short", [figures], made_by)
    found = left(prints)
    shown = [*tally.distinct_faults()][:_SHOWN]
    for line in (*shown, *found):
        print(line)
    if given.json is not None:
        held = [asdict(each) for each in prints]
        kept = {"kinds": rows, "held": held, "left": found, "seed": given.seed, "distinct_faults": shown}
        write_json(given.json, figures | kept, made_by)
    return 1 if tally.faults or found else 0


def settings() -> Json:
    """Return the application's arguments: stub engines, all tiers warm."""
    tiers = {name: {"replicas": {"min": 1, "max": 1}} for name in TIER_NAMES}
    return {"profile": "local", "inference_mode": "mock", "stub": {"tokens_per_s": 2000.0}, "tiers": tiers}


if __name__ == "__main__":
    sys.exit(main())
