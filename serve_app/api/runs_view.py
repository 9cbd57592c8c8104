"""What `/api/tiers` says of a tier's recent runs."""

from __future__ import annotations

from typing import Any

from router.observation import TierState
from router.runs.summary import Recent, RunSummary


def runs_view(state: TierState) -> dict[str, Any]:
    """All categories together, and each of them under `categories`."""
    categories = {name: _summary(summary) for name, summary in sorted(state.recent_by_category.items())}
    return _summary(state.recent) | {"categories": categories}


def _summary(summary: RunSummary) -> dict[str, Any]:
    """Means and deviations; null where nothing was measured."""
    return {
        "runs": round(summary.runs, 2),
        "ttft_ms": _recent(summary.ttft_ms),
        "engine_ttft_ms": _recent(summary.engine_ttft_ms),
        "total_ms": _recent(summary.total_ms),
        "tokens_per_sec": _recent(summary.tokens_per_s),
        "completion_tokens": _recent(summary.completion_tokens),
        "acceptance_rate": summary.acceptance_rate,
        "draft_tokens": round(summary.draft_tokens, 2),
        "energy_wh": _recent(summary.energy_wh),
        "cost_usd": _recent(summary.cost_usd),
        "finish_reasons": dict(summary.finish_reasons),
    }


def _recent(recent: Recent | None) -> dict[str, float] | None:
    return {"mean": recent.mean, "deviation": recent.deviation} if recent else None
