"""Reports of finished requests, with defaults for what a test does not set."""

from __future__ import annotations

from typing import Any

from router.registry import TierName
from router.runs.summary import RunReport


def run(tier: TierName = "eco", **over: Any) -> RunReport:
    """A maths answer of 51 tokens: 20 ms waited, first token at 100 ms, then one every 20 ms; 1 W, 1 USD an hour."""
    values: dict[str, Any] = {
        "category": "math",
        "ttft_ms": 100.0,
        "queue_ms": 20.0,
        "total_ms": 1100.0,
        "tokens_per_s": 51 / 1.08,
        "completion_tokens": 51,
        "draft_tokens": 0,
        "accepted_tokens": 0,
        "energy_wh": 1.08 / 3600,
        "cost_usd": 1.08 / 3600,
        "finish_reason": "stop",
    }
    return RunReport(tier=tier, **(values | over))
