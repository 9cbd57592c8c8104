"""Do the shares of all requests add up to the time in which the engine was busy, and do equal requests pay the same?

Two real engines of the local profile, one that drafts by n-gram lookup and one without speculation. By batch size:

conservation_error   busy time that nobody was billed, over busy time: prompts of many lengths (read in pieces beside
                     others that decode), answers of many lengths, stop strings, clients that leave. Billed are whole
                     answers, and of clients that left what they had until their last token and what the engine counts
                     as left. Preemptions are in tests/integration/v2/test_shares.py.
equal_bill_spread    (dearest - cheapest) / mean of the bills of equal requests. The engine begins when it has them all,
                     so that it begins and ends them in the same steps: who decodes alone pays alone.
busy_share           busy time over the time from the first request to the last token

    python -m bench.energy [--quick] [--json FILE]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Final

from bench.engine.engines import Ask, Batch, engine_process
from bench.reporting.options import parser
from bench.reporting.report import Value, print_report, provenance, write_json
from cluster.profiles.reading import load_profile
from cluster.weights import models_dir
from cluster.weights.folder import model_path

BATCHES: Final = (1, 8, 32)
TOKENS: Final = 48
STORY: Final = "Tell me a story about a fox that counts the stars. "


def restless(batch: int) -> list[Ask]:
    """Return requests of many kinds. The last one stays to the end, so that the engine's report covers them all."""
    asks = [
        Ask(
            STORY * (1 + 7 * (number % 4)),
            max_tokens=8 + 11 * (number % 5),
            stop=("the",) if number % 6 == 5 else (),
            leave_after=5 if number % 4 == 2 else None,
            temperature=0.8 if number % 2 else 0.0,
        )
        for number in range(2 * batch)
    ]
    return [*asks, Ask(STORY, max_tokens=2 * TOKENS)]


def unbilled(batch: Batch) -> float:
    """Return the busy time that nobody was billed, over busy time."""
    billed_s = sum(reply.busy_s for reply in batch.replies)
    return abs(batch.busy.busy_s - batch.busy.left_s - billed_s) / batch.busy.busy_s


def equal(batch: int) -> list[Ask]:
    """Return equal requests that draft alike."""
    return [Ask(STORY, k=2, max_tokens=TOKENS)] * batch


def spread(batch: Batch) -> float:
    """Return (dearest - cheapest) / mean of the bills of equal requests."""
    bills = [reply.busy_s for reply in batch.replies]
    return (max(bills) - min(bills)) / mean(bills)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    args = parser("bench.energy", __doc__, "one round instead of three").parse_args(argv)
    made_by = provenance()
    profile = load_profile("local")
    tier = profile.tiers["eco"]
    models = {name: model_path(models_dir({}), name) for name in profile.models}
    rows: list[dict[str, Value]] = []
    with TemporaryDirectory() as folder:
        for entry in tier.chain:
            print(f"{entry.name}: starting", file=sys.stderr)
            with engine_process(entry, tier, models, Path(folder) / "log") as engine:
                engine.ask([Ask(STORY, max_tokens=TOKENS)] * 8)  # steps of many sizes, so that costs are known
                for batch in BATCHES:
                    for number in range(1 if args.quick else 3):
                        mixed = engine.ask(restless(batch), at_once=batch)
                        alike = engine.ask(equal(batch), one_step=True)
                        rows.append(
                            {
                                "engine": entry.name,
                                "batch": batch,
                                "round": number + 1,
                                "conservation_error": unbilled(mixed),
                                "equal_bill_spread": spread(alike),
                                "busy_share": mixed.busy.busy_s / mixed.seconds,
                                "left_share": mixed.busy.left_s / mixed.busy.busy_s,
                                "preemptions": mixed.preemptions,
                            }
                        )
    print_report("Shares of busy time", rows, made_by)
    if args.json:
        write_json(args.json, {"rows": rows}, made_by)
    return 0


if __name__ == "__main__":
    sys.exit(main())
