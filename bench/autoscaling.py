"""Compare scaling policies in simulation: requests over the TTFT target, and GPU-hours.

A discrete-event simulation (`bench/scaling/simulation.py`) of one tier at several sizes under three kinds of traffic
(`bench/scaling/traffic.py`). It is scaled by `cluster.autoscaling.decide` itself, by Serve's default policy (Ray's own
code), or by KEDA with a threshold on waiting requests (`bench/scaling/policies.py`). All policies see the same
requests.

slo_miss_share is the share of requests without a token within the TTFT target. gpu_hours count from the moment that a
replica is requested until it is gone. Goal on every trace: at equal or fewer GPU-hours, at most half the misses of the
better (fewer misses) of the other two.

    python -m bench.autoscaling [--json FILE] [--quick] [--seed N]

With `--json x.json` the report is also written to x.md, and its plot to x.svg.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.reporting.options import parser
from bench.reporting.plot import grouped_bars
from bench.reporting.report import Value, markdown_table, print_report, provenance, write_json
from bench.scaling.hardware import hardware_of
from bench.scaling.policies import POLICIES
from bench.scaling.simulation import Outcome, simulate
from bench.scaling.traffic import SHAPES, made

HARDWARE: Final = hardware_of("eco")
DURATIONS_S: Final[Mapping[int, float]] = {4: 14_400.0, 32: 14_400.0, 250: 7_200.0, 1000: 7_200.0}
"""By most replicas. Requests grow with the replicas, so large tiers are simulated for a shorter time."""
QUICK_DURATIONS_S: Final[Mapping[int, float]] = {4: 7_200.0, 32: 7_200.0}
TTFT_TARGET_S: Final = 2.0
OURS: Final = "queue_wait"


class Case(NamedTuple):
    """One simulation."""

    trace: str
    replicas_max: int
    duration_s: float
    seed: int
    policy: str


def run_case(case: Case) -> Outcome:
    """Simulate one case."""
    trace = made(case.trace, HARDWARE, case.replicas_max, case.duration_s, case.seed)
    policy = POLICIES[case.policy](HARDWARE, case.replicas_max)
    return simulate(
        trace, HARDWARE, policy, ttft_target_s=TTFT_TARGET_S, initial=case.replicas_max, counted_from_s=600.0
    )


def rows_of(outcomes: Mapping[Case, Outcome]) -> list[dict[str, Value]]:
    """Return one row per case."""
    return [
        {
            "name": case.trace,
            "replicas_max": case.replicas_max,
            "policy": case.policy,
            "slo_miss_share": outcome.miss_share,
            "gpu_hours": outcome.gpu_hours,
            "scale_actions": outcome.scale_actions,
            "most_replicas": outcome.most_replicas,
            "requests": outcome.requests,
            "hours": case.duration_s / 3600,
        }
        for case, outcome in outcomes.items()
    ]


def goal_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Value]]:
    """Compare our policy with the better of the others on every trace and size."""
    made: list[dict[str, Value]] = []
    for name, size in dict.fromkeys((row["name"], row["replicas_max"]) for row in rows):
        here = {row["policy"]: row for row in rows if (row["name"], row["replicas_max"]) == (name, size)}
        ours = here.pop(OURS)
        better = min(here.values(), key=lambda row: (row["slo_miss_share"], row["gpu_hours"]))
        hours, misses = ours["gpu_hours"] / better["gpu_hours"], ours["slo_miss_share"]
        made.append(
            {
                "name": name,
                "replicas_max": size,
                "better": better["policy"],
                "its_misses": better["slo_miss_share"],
                "our_misses": misses,
                "gpu_hours_ratio": hours,
                "met": "yes" if hours <= 1 and misses <= better["slo_miss_share"] / 2 else "no",
            }
        )
    return made


def write_report(path: Path, rows: Sequence[Mapping[str, Any]], made_by: Mapping[str, Any]) -> None:
    """Write the Markdown report, and its plot beside it."""
    names = list(dict.fromkeys(row["name"] for row in rows))
    sizes = list(dict.fromkeys(row["replicas_max"] for row in rows))
    by_case = {(row["name"], row["replicas_max"], row["policy"]): row for row in rows}
    panels: dict[str, dict[str, list[float | None]]] = {}
    for name in names:
        missed, hours = panels[f"{name}: missed, %"], panels[f"{name}: GPU-hours, ours = 1"] = {}, {}
        for policy in POLICIES:
            here = [(by_case[name, size, policy], by_case[name, size, OURS]) for size in sizes]
            missed[policy] = [100 * row["slo_miss_share"] for row, _ in here]
            hours[policy] = [row["gpu_hours"] / ours["gpu_hours"] for row, ours in here]
    title = "Requests over the TTFT target, and GPU-hours, by the most replicas"
    grouped_bars(path.with_suffix(".svg"), title, panels, [str(size) for size in sizes], "", 1.0)
    parts = [
        "# Scaling policies in simulation",
        f"`{made_by['command']}`; {made_by['git']}; {made_by['date']}. The method is described in "
        "`bench/autoscaling.py`. This is a simulation: no GPU was used.",
        f"![{title}]({path.with_suffix('.svg').name})",
        "## Against the goal",
        markdown_table(goal_rows(rows)),
        "## Every trace",
        markdown_table(rows),
    ]
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def main() -> int:
    """Run the command line."""
    arguments = parser("bench.autoscaling", __doc__, "4 and 32 replicas, shorter traces")
    arguments.add_argument("--seed", type=int, default=1, metavar="N", help="of the traffic (default 1)")
    options = arguments.parse_args()
    made_by = provenance()
    durations = QUICK_DURATIONS_S if options.quick else DURATIONS_S
    cases = [
        Case(name, size, duration_s, options.seed, policy)
        for size, duration_s in durations.items()
        for name in SHAPES
        for policy in POLICIES
    ]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as processes:
        outcomes = dict(zip(cases, processes.map(run_case, cases), strict=True))
    rows = rows_of(outcomes)
    print_report("Every trace", rows, made_by)
    print_report("Against the goal", goal_rows(rows), made_by)
    if options.json:
        write_json(options.json, {"traces": rows}, made_by)
        write_report(options.json.with_suffix(".md"), rows, made_by)
    return 0


if __name__ == "__main__":
    sys.exit(main())
