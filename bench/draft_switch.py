"""What it costs to switch from a draft model to n-gram drafting, and back, while requests are under way.

It runs the performance tier of the local profile, with 3 draft tokens at every step. When one request has 8 tokens, the
order to switch comes. For each direction the report has how long the order takes, the longest wait for tokens of any
request in the steps around the switch, and the median wait before it (with the same drafts). For comparison, it has the
time until a restarted engine has answered.

    python -m bench.draft_switch [--quick] [--json FILE]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.engine.engines import Ask, Batch, EngineProcess, Reply, engine_process
from bench.engine.prompts import cycled
from bench.reporting.options import parser
from bench.reporting.report import Value, print_report, provenance, write_json
from bench.reporting.stats import median
from cluster.profiles.reading import load_profile
from cluster.weights import models_dir
from cluster.weights.folder import model_path
from router.registry import Drafts

PROMPTS: Final = tuple(f"Tell me a story about {what}." for what in ("a fox", "rain", "a clock", "salt"))
STREAMS: Final = (1, 8)
MAX_TOKENS: Final = 48
AROUND: Final = 2
"""Steps before and after the switch that count as around it."""


@dataclass(frozen=True, slots=True)
class Change:
    """One switch while requests were under way."""

    order_s: float
    longest_gap_s: float
    """Longest time between two steps of a request around the switch."""
    usual_gap_s: float
    """Median of those before it."""


def change_of(batch: Batch) -> Change:
    """Return what the order in this batch cost its requests.

    Raises:
        ValueError: the drafts of a request did not switch.
    """
    if batch.order_s is None:
        raise ValueError("no order was given in this batch")
    around: list[float] = []
    before: list[float] = []
    for reply in batch.replies:
        # An item is a step, as the consumer keeps up.
        gaps, place = [gap_s for gap_s, _ in reply.gaps], place_of_change(reply)
        around += gaps[max(0, place - AROUND) : place + AROUND]
        before += gaps[: max(1, place - AROUND)]
    return Change(batch.order_s, max(around), median(before))


def place_of_change(reply: Reply) -> int:
    """Return the index of the first step whose drafts were made in another way than those before.

    Raises:
        ValueError: there is none.
    """
    drafts = [step.drafts for step in reply.steps if step.drafted]
    for place, (before, after) in enumerate(pairwise(drafts), start=1):
        if before != after:
            return place
    raise ValueError("a request ended before the drafts switched")


def measure(engine: EngineProcess, streams: int, drafts: Drafts) -> Change:
    """Measure one switch with that many requests under way."""
    asks = [Ask(prompt, 3, max_tokens=MAX_TOKENS) for prompt in cycled(PROMPTS, 0, streams)]
    return change_of(engine.ask(asks, order=drafts))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    args = parser("bench.draft_switch", __doc__, "one repetition instead of five").parse_args(argv)
    made_by = provenance()
    repetitions = 1 if args.quick else 5
    profile = load_profile("local")
    tier, entry = profile.tiers["performance"], profile.entry("performance", None)
    models = {name: model_path(models_dir({}), name) for name in profile.models}
    rows: list[dict[str, Value]] = []
    began_s = time.monotonic()
    with TemporaryDirectory() as folder, engine_process(entry, tier, models, Path(folder) / "log") as engine:
        engine.ask([Ask(PROMPTS[0], 3, max_tokens=1)])
        start_s = time.monotonic() - began_s
        for streams in STREAMS:
            changes: dict[Drafts, list[Change]] = {"ngram": [], "own": []}
            for repetition in range(repetitions):
                print(f"{streams} streams, repetition {repetition + 1} of {repetitions}", file=sys.stderr)
                for drafts, seen in changes.items():
                    seen.append(measure(engine, streams, drafts))
            rows += [
                {
                    "streams": streams,
                    "to": drafts,
                    "order_ms": 1000 * max(change.order_s for change in seen),
                    "longest_gap_ms": 1000 * max(change.longest_gap_s for change in seen),
                    "usual_gap_ms": 1000 * median([change.usual_gap_s for change in seen]),
                }
                for drafts, seen in changes.items()
            ]
    print_report("Switching drafts while requests are under way", rows, made_by)
    print(f"\nRestarting the engine instead: {start_s:.1f} s until it has answered.")
    if args.json:
        write_json(args.json, {"changes": rows, "engine_start_s": start_s, "repetitions": repetitions}, made_by)
    return 0


if __name__ == "__main__":
    sys.exit(main())
