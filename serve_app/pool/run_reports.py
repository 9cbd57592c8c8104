"""The report of a finished run, for the pool, which keeps the record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from router.escalation import comparable
from router.plan import Plan
from router.runs.summary import FINISH_REASONS, RunReport
from router.signs import NO_SIGNS, Signs


def run_report(plan: Plan, metrics: Mapping[str, Any], signs: Signs = NO_SIGNS) -> RunReport:
    """Return the report of a finished request, from its plan, its `metrics` event and how its answer went."""
    reason = metrics["finish_reason"]
    return RunReport(
        tier=plan.tier,
        category=plan.classification.category,
        ttft_ms=metrics["ttft_ms"],
        queue_ms=metrics["queue_ms"],
        total_ms=metrics["total_ms"],
        tokens_per_s=metrics["tokens_per_sec"],
        completion_tokens=metrics["completion_tokens"],
        draft_tokens=metrics["spec"]["draft_tokens"],
        accepted_tokens=metrics["spec"]["accepted_tokens"],
        energy_wh=metrics["energy"]["wh"],
        cost_usd=metrics["cost_usd"],
        energy_is_measured=metrics["energy"]["source"] == "measured",
        signs=comparable(signs, plan),
        finish_reason=next((known for known in FINISH_REASONS if known == reason), "other"),
    )
