"""Compare scaling policies in simulation: requests over the TTFT target against GPU-hours.

A discrete-event simulation (`bench/scaling/simulation.py`) of one tier at several sizes. Its replicas are as fast as
measured kernels let expect for the tier's model and GPU (`bench/scaling/hardware.py`). The traffic is recorded, from
files, or made (`bench/scaling/traffic.py`), and scaled to the tier: the busiest minute is 0.8 of what all replicas can
do. All policies see the same requests, begin with all replicas, and are counted from the eleventh minute on.

Every policy has a front, over one setting (`bench/scaling/policies.py`): ours (`cluster.autoscaling.decide` itself)
over the share of requests that may miss the target, Serve's default (Ray's own code) over its target of ongoing
requests, KEDA over its threshold of waiting requests, and fixed numbers of replicas. Three more show what would help:
a policy that knows the future, replicas that start ten times as fast, and refusing requests that would be late.

slo_miss_share is the share of requests without a token within the TTFT target. gpu_hours count from the moment that a
replica is requested until it is gone. Figures are means over seeds that chose no setting. Goal for every trace and
size: at the GPU-hours of any rival's point at most half its misses (or 0.1%), and at its misses at most 0.9 of its
GPU-hours.

    python -m bench.autoscaling [--trace FILE.csv]... [--tier NAME] [--json FILE] [--quick]

With `--json x.json` the report is also written to x.md, and its plot to x.svg.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.reporting.options import parser
from bench.reporting.plot import fronts
from bench.reporting.report import markdown_table, print_report, provenance, write_json
from bench.scaling.fronts import HELP, Key, Row, goal_rows, help_rows, rows_of, summary_rows
from bench.scaling.hardware import hardware_of, scaled_cold_start
from bench.scaling.policies import FAMILIES, Tier
from bench.scaling.simulation import Outcome, Trace, simulate
from bench.scaling.traffic import SHAPES, TrafficError, made, read_recording, scaled
from router.registry import TIER_NAMES, TierName

SEEDS: Final[Mapping[int, int]] = {4: 10, 32: 10}
"""By most replicas."""
QUICK_SEEDS: Final[Mapping[int, int]] = {4: 1, 32: 1}
FIRST_SEED: Final = 101
"""Settings were chosen on seeds below."""
DURATION_S: Final = 7200.0
"""Of made traffic."""
COUNTED_FROM_S: Final = 600.0
TTFT_TARGET_S: Final = 2.0


class Task(NamedTuple):
    """The simulations that have the same requests."""

    trace: str
    """A key of `SHAPES`, or a file."""
    tier: TierName
    replicas_max: int
    seed: int


def run_task(task: Task) -> dict[Key, Outcome]:
    """Simulate every policy at each of its settings."""
    hardware = hardware_of(task.tier)
    trace = _trace(task)
    made: dict[Key, Outcome] = {}
    for name, family in FAMILIES.items():
        its_hardware = scaled_cold_start(hardware, family.cold_start)
        for setting in family.settings(hardware, task.replicas_max):
            made[Key(trace.name, task.replicas_max, name, setting)] = simulate(
                trace,
                its_hardware,
                family.make(Tier(trace, its_hardware, task.replicas_max), setting),
                ttft_target_s=TTFT_TARGET_S,
                initial=task.replicas_max if name != "fixed" else int(setting),
                counted_from_s=COUNTED_FROM_S,
                admission=family.admission,
            )
    return made


def _trace(task: Task) -> Trace:
    hardware = hardware_of(task.tier)
    if task.trace in SHAPES:
        return made(task.trace, hardware, task.replicas_max, DURATION_S, task.seed)
    return scaled(_recording(Path(task.trace)), hardware, task.replicas_max, task.seed)


_recording = cache(read_recording)


def run_all(tasks: Sequence[Task]) -> dict[Key, list[Outcome]]:
    """Return the outcomes of every point, one for each seed. Tasks run in parallel, the largest first."""
    order = sorted(tasks, key=lambda task: -task.replicas_max)
    by_key: dict[Key, list[Outcome]] = {}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as processes:
        by_task = dict(zip(order, processes.map(run_task, order), strict=True))
    for task in tasks:
        for key, outcome in by_task[task].items():
            by_key.setdefault(key, []).append(outcome)
    return by_key


def write_report(path: Path, tier: TierName, rows: Sequence[Row], made_by: Mapping[str, Any]) -> None:
    """Write the Markdown report, and its plot beside it."""
    panels: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        panel = panels.setdefault((row["trace"], f"{row['replicas_max']} replicas"), {})
        panel.setdefault(row["policy"], []).append((row["gpu_hours"], 100 * row["slo_miss_share"]))
    title = f"Requests over the TTFT target of {TTFT_TARGET_S:g} s, against GPU-hours"
    fronts(path.with_suffix(".svg"), title, panels, "GPU-hours", "missed, %")
    goals = goal_rows(rows)
    hardware = hardware_of(tier)
    parts = [
        "# Scaling policies in simulation",
        f"`{made_by['command']}`; {made_by['git']}; {made_by['date']}. The method is described in "
        f"`bench/autoscaling.py`. This is a simulation: no GPU was used. Tier `{tier}` of the profile `gpu`: "
        f"{hardware.slots} requests at once on a replica, a cold start of {hardware.cold_start_s:g} s, a prompt of 512 "
        f"tokens in {1000 * hardware.prompt_s(512):.0f} ms, all estimated from measured kernels.",
        f"![{title}]({path.with_suffix('.svg').name})",
        "## Against the goal",
        "For how many of each rival's points ours has at most half the misses (or 0.1%) at its GPU-hours, and takes at "
        "most 0.9 of its GPU-hours at its misses.",
        markdown_table(summary_rows(goals)),
        "## What would help",
        HELP,
        markdown_table(help_rows(rows)),
        "## Every point of a rival",
        markdown_table(goals),
        "## Every point",
        markdown_table(rows),
    ]
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def main() -> int:
    """Run the command line."""
    arguments = parser("bench.autoscaling", __doc__, "one seed")
    arguments.add_argument(
        "--trace",
        action="append",
        metavar="FILE.csv",
        help="recorded traffic with the columns arrival_s, prompt_tokens and completion_tokens, or one of "
        f"{', '.join(SHAPES)}; may be repeated (default: these three)",
    )
    arguments.add_argument("--tier", choices=TIER_NAMES, default=TIER_NAMES[0], help="of the profile gpu (default eco)")
    options = arguments.parse_args()
    traces: list[str] = options.trace or list(SHAPES)
    try:
        names = [trace if trace in SHAPES else _recording(Path(trace)).name for trace in traces]
    except TrafficError as error:
        arguments.exit(2, f"{error}\n")
    if len(set(names)) < len(names):
        arguments.exit(2, f"--trace: got {', '.join(names)}; allowed are files of different names\n")
    made_by = provenance()
    tasks = [
        Task(trace, options.tier, size, FIRST_SEED + number)
        for trace in traces
        for size, seeds in (QUICK_SEEDS if options.quick else SEEDS).items()
        for number in range(seeds)
    ]
    rows = rows_of(run_all(tasks))
    goals = goal_rows(rows)
    print_report("Every point", rows, made_by)
    print_report("Every point of a rival", goals, made_by)
    print_report("What would help", help_rows(rows), made_by)
    print_report("Against the goal", summary_rows(goals), made_by)
    if options.json:
        write_json(options.json, {"fronts": rows, "goals": goals}, made_by)
        write_report(options.json.with_suffix(".md"), options.tier, rows, made_by)
    return 0


if __name__ == "__main__":
    sys.exit(main())
