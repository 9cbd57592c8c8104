"""Measure the time to first token of a tier without a replica, and the memory of one to four tiers.

The application starts with all four tiers at zero. Each then gets one request, weakest first, which wakes it. Memory is
PSS (shared pages counted once) of the replica and its engine's processes.

    python -m bench.cold_start [--quick] [--json FILE]

`--quick` wakes only one tier, which takes about a minute on two cores.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.load.client import fetch, request_for
from bench.load.processes import pss_bytes
from bench.load.servers import Server, application, replica_trees, running
from bench.load.sse import EventReader
from bench.reporting.options import parser
from bench.reporting.report import REPOSITORY, Value, print_report, provenance, write_json
from router.registry import TIER_NAMES, TierName

POWERS: Final[dict[TierName, int]] = {"eco": 10, "balanced": 40, "performance": 70, "ultra": 95}
_SETTLE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Wake:
    """One cold request. Seconds since it was sent; None without such an event."""

    first_event_s: float | None
    first_status_s: float | None
    first_token_s: float


async def wake(port: int, power: int, timeout_s: float) -> Wake:
    """Send a request to a cold tier and time its events.

    Raises:
        RuntimeError: the answer failed.
    """
    request = request_for("inference", port, "Say hello.", 8, mode="manual", power=power)
    request = dataclasses.replace(request, timeout_s=timeout_s)
    reader = EventReader("inference")
    outcome = await fetch(request, reader)
    if outcome.error is not None or not reader.token_times_s:
        raise RuntimeError(f"power {power}: {outcome.error or 'no token'}")
    since = {kind: time_s - outcome.start_s for kind, time_s in reader.kinds_s.items()}
    return Wake(since.get("config"), since.get("status"), reader.token_times_s[0] - outcome.start_s)


def memory_row(app: Server) -> dict[TierName, float]:
    """Return the PSS of each tier with a replica, GB (10^9 bytes)."""
    trees = replica_trees(app.processes(), TIER_NAMES)
    return {tier: pss_bytes(trees[tier]) / 1e9 for tier in TIER_NAMES if tier in trees}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    options = parser("bench.cold_start", __doc__, "one tier only")
    options.add_argument("--mock", action="store_true", help="use stub engines, to measure Serve alone")
    args = options.parse_args(argv)
    made_by = provenance()
    tiers = TIER_NAMES[:1] if args.quick else TIER_NAMES
    arguments = {
        "profile": "local",
        "inference_mode": "mock" if args.mock else "real",
        "models_dir": os.environ.get("MODELS_DIR", str(REPOSITORY / "models")),
        # No tier scales in while others start.
        "tiers": {tier: {"replicas": {"min": 0, "max": 1}, "idle_before_zero_s": 3600} for tier in TIER_NAMES},
    }
    app = application({"/": arguments}, ready="/healthz")
    rows: list[dict[str, Value]] = []
    with running(app, timeout_s=120):
        rest_gb = pss_bytes(app.processes()) / 1e9
        for count, tier in enumerate(tiers, start=1):
            print(f"waking {tier} ...", file=sys.stderr)
            woken = asyncio.run(wake(app.port, POWERS[tier], timeout_s=600))
            time.sleep(_SETTLE_S)
            memory_gb = memory_row(app)
            rows.append(
                {
                    "tier": tier,
                    "first_event_s": woken.first_event_s,
                    "first_status_s": woken.first_status_s,
                    "first_token_s": woken.first_token_s,
                    "tiers_loaded": count,
                    "tier_pss_gb": memory_gb.get(tier),
                    "all_tiers_pss_gb": sum(memory_gb.values()),
                    "application_pss_gb": pss_bytes(app.processes()) / 1e9,
                }
            )
    print_report("Cold start and resident memory", rows, made_by)
    print(f"\nRay, Serve and the ingress before any tier: {rest_gb:.2f} GB PSS")
    if args.json:
        write_json(args.json, {"rows": rows, "without_tiers_pss_gb": rest_gb, "mock": args.mock}, made_by)
    return 0


if __name__ == "__main__":
    sys.exit(main())
