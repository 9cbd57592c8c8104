"""Measure the overhead of this application over vLLM's own server, with the same model and engine arguments.

Three doors are measured in turn (a b c a b c ...) by one client in one run, so that drift of the machine affects all:
(a) vLLM's own server, (b) our `/v1/chat/completions`, (c) our `/api/inference`. Requests are greedy, without
speculation, with the same prompts, so the answers are equal. One server is measured at a time. The other stays loaded
but frozen (SIGSTOP), because an idle vLLM takes a fifth of a core: all of bare vLLM, or the engine processes of the
application, as Ray must keep running. `idle_server_cpu_share` in the JSON is the CPU time that the rest still takes, of
one core.


    python -m bench.overhead [--quick] [--json FILE]

Starting the two engines takes one to three minutes on two cores, with `--quick` too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from psutil import Process

from bench.load.client import PROMPTS, Stream, run_batch, total_tokens_per_s
from bench.load.processes import command_of, cpu_seconds
from bench.load.servers import Server, application, bare_vllm, openmp_libraries, running
from bench.load.sse import Dialect
from bench.reporting.options import parser
from bench.reporting.report import Value, print_report, provenance, write_json
from bench.reporting.stats import median, percentile
from cluster.cpu_environment import cpu_environment
from cluster.profiles.reading import load_profile
from cluster.weights import models_dir
from router.registry import ChainEntry, Profile, TierName

TIER: Final[TierName] = "eco"
POWER: Final = 10
Door = Literal["vllm", "/v1/chat/completions", "/api/inference"]
DOORS: Final[tuple[Door, ...]] = ("vllm", "/v1/chat/completions", "/api/inference")


@dataclass(frozen=True, slots=True)
class Plan:
    """Amount of load."""

    streams: tuple[int, ...]
    repetitions: int
    max_tokens: int
    waves: int
    requests_at_one_stream: int

    def requests(self, streams: int) -> int:
        """Return the answers per repetition: `waves` per stream, more for a single one, whose median needs samples."""
        return self.requests_at_one_stream if streams == 1 else self.waves * streams


FULL: Final = Plan(streams=(1, 8, 16), repetitions=3, max_tokens=32, waves=1, requests_at_one_stream=6)
QUICK: Final = Plan(streams=(1, 8), repetitions=1, max_tokens=16, waves=1, requests_at_one_stream=3)


@dataclass(slots=True)
class Cell:
    """All measurements at one door with one number of streams."""

    answers: list[Stream] = field(default_factory=list)
    tokens_per_s: list[float] = field(default_factory=list)
    """One per repetition."""
    idle_server_cpu_share: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


Cells = dict[tuple[int, Door], Cell]


def overhead_rows(cells: Cells) -> list[dict[str, Value]]:
    """Return our two doors against vLLM's own, by number of streams.

    ttft_overhead_p50_ms is our median time to first text minus vLLM's. throughput_ratio is our output tokens/s over
    vLLM's, as medians over repetitions.
    """
    rows: list[dict[str, Value]] = []
    for (streams, door), cell in cells.items():
        bare = cells[streams, "vllm"]
        ttft_ms, bare_ttft_ms = (1000 * median([a.ttft_s for a in c.answers]) for c in (cell, bare))
        gaps = [gap for answer in cell.answers for gap in answer.gaps_s]
        rows.append(
            {
                "path": door,
                "streams": streams,
                "ttft_p50_ms": ttft_ms,
                "ttft_overhead_p50_ms": ttft_ms - bare_ttft_ms,
                "itl_p50_ms": 1000 * percentile(gaps, 50) if gaps else None,
                "itl_p99_ms": 1000 * percentile(gaps, 99) if gaps else None,
                "tokens_per_s": median(cell.tokens_per_s),
                "throughput_ratio": median(cell.tokens_per_s) / median(bare.tokens_per_s),
                "tokens": sum(answer.tokens for answer in cell.answers),
                "errors": len(cell.errors),
            }
        )
    return rows


@contextlib.contextmanager
def _frozen(processes: Sequence[Process]) -> Iterator[None]:
    """Stop the processes inside the block."""
    pids = [process.pid for process in processes]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)


def _is_engine(process: Process) -> bool:
    """Return whether it is one of vLLM's own processes, below the replica that Ray watches."""
    return command_of(process).startswith("VLLM::")


def _request(door: Door, bare: Server, app: Server) -> tuple[Dialect, int, dict[str, Any]]:
    """Return the dialect, the port and the body fields that differ between the doors."""
    match door:
        case "vllm":
            return "openai", bare.port, {"model": "bench"}
        case "/v1/chat/completions":
            return "openai", app.port, {"model": TIER}
        case "/api/inference":
            return "inference", app.port, {"mode": "manual", "power": POWER, "top_p": 1.0, "spec": {"enabled": False}}


def measure(plan: Plan, bare: Server, app: Server) -> Cells:
    """Measure all cells, door by door within each repetition."""
    cells: Cells = {(streams, door): Cell() for streams in plan.streams for door in DOORS}
    for repetition in range(plan.repetitions + 1):
        for streams in plan.streams:
            for door in DOORS:
                dialect, port, body = _request(door, bare, app)
                idle = app if door == "vllm" else bare
                at_rest = [process for process in idle.processes() if idle is bare or _is_engine(process)]
                with _frozen(at_rest):
                    # Get one short answer first, to warm the caches and connections of a server that was frozen.
                    asyncio.run(run_batch(dialect, port, 1, 1, 4, **body))
                    if repetition == 0:
                        continue  # the first repetition only warms up
                    started_s, cpu_s = time.monotonic(), cpu_seconds(idle.processes())
                    answers, errors = asyncio.run(
                        run_batch(dialect, port, streams, plan.requests(streams), plan.max_tokens, **body)
                    )
                    cpu_share = (cpu_seconds(idle.processes()) - cpu_s) / (time.monotonic() - started_s)
                cell = cells[streams, door]
                cell.answers += answers
                cell.errors += errors
                cell.idle_server_cpu_share.append(cpu_share)
                if answers:
                    cell.tokens_per_s.append(total_tokens_per_s(answers))
        print(f"repetition {repetition} of {plan.repetitions} done", file=sys.stderr)
    return cells


def plain_entry(profile: Profile) -> ChainEntry:
    """Return the first entry of the tier's chain that does not speculate. Both servers run it."""
    for entry in profile.tiers[TIER].chain:
        if entry.speculation is None:
            return entry
    raise ValueError(f"tier {TIER} has no entry without speculation")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if an answer failed."""
    options = parser("bench.overhead", __doc__, "one repetition, 1 and 8 streams, 16 tokens an answer")
    options.add_argument("--models", type=Path, help="models folder (default: MODELS_DIR, else ./models)")
    args = options.parse_args(argv)
    made_by = provenance()
    plan = QUICK if args.quick else FULL
    models = (args.models or models_dir(os.environ)).resolve()
    entry = plain_entry(load_profile("local"))

    bare = bare_vllm(entry, models / entry.target, cpu_environment(Path(sys.prefix)))
    arguments = {
        "profile": "local",
        "inference_mode": "real",
        "models_dir": str(models),
        "tiers": {TIER: {"chain": [entry.model_dump()], "replicas": {"min": 1, "max": 1}}},
    }
    app = application({"/": arguments})
    with running(app, bare):
        cells = measure(plan, bare, app)
        openmp = {server.name: openmp_libraries(server.processes()) for server in (bare, app)}
    rows = overhead_rows(cells)
    errors = [error for cell in cells.values() for error in cell.errors]
    print_report("Overhead over bare vLLM", rows, made_by)
    if args.json:
        details = {
            "model": entry.target,
            "engine_args": entry.engine_args,
            "openmp_libraries": openmp,
            "max_tokens": plan.max_tokens,
            "repetitions": plan.repetitions,
            "prompts": list(PROMPTS),
            "idle_server_cpu_share": {
                f"{streams} {door}": cell.idle_server_cpu_share for (streams, door), cell in cells.items()
            },
            "errors": errors,
        }
        write_json(args.json, {"rows": rows, **details}, made_by)
    for error in errors[:5]:
        print(f"failed: {error}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
