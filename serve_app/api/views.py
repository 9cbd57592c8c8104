"""The body of `/api/tiers`: the registry joined with the observation."""

from __future__ import annotations

from typing import Any

from router.agent.leaving import Leaving
from router.observation import ClusterGpus, Observation, TierState
from router.registry import Tier
from router.runs.summary import Recent, RunSummary
from serve_app.config import AppConfig


def tiers_view(config: AppConfig, observation: Observation, leaving: Leaving | None = None) -> dict[str, Any]:
    """Return the body of `/api/tiers`.

    Args:
        config: with the registry.
        observation: of the tiers.
        leaving: what leaves the cluster; None: nothing.
    """
    return {
        "profile": config.profile,
        "profile_reason": config.profile_reason,
        "inference_mode": config.inference_mode,
        "leaves_cluster": None if leaving is None else leaving.view(),
        "baseline": config.baseline.model_dump(),
        "gpus": _gpus(observation.gpus),
        "tiers": [_tier(name, tier, observation.tier(name)) for name, tier in config.tiers.items()],
    }


def _gpus(gpus: ClusterGpus | None) -> dict[str, Any] | None:
    if gpus is None:
        return None
    return {
        "types": {
            name: {"nodes": kind.nodes, "total": kind.gpus, "free": kind.free}
            for name, kind in sorted(gpus.types.items())
        },
        "autoscaler": gpus.autoscaler,
        "nodes_coming": dict(gpus.coming),
        "failed_launches": dict(gpus.failures),
    }


def drafts_both_ways(tier: Tier, state: TierState) -> bool:
    """Return whether requests may choose who drafts on the chain entry that the tier serves, or would try first."""
    speculation = tier.entry(state.active_entry).speculation
    return speculation is not None and speculation.drafts_both_ways


def _drafts(tier: Tier, state: TierState) -> dict[str, Any] | None:
    """Return who drafts, and what was learned about it; None: the entry makes no drafts."""
    speculation = tier.entry(state.active_entry).speculation
    if speculation is None:
        return None
    learned = state.learned
    return {
        "in_use": state.drafts,
        "reason": state.drafts_reason,
        "choice": speculation.drafts_both_ways,
        "floor": speculation.floor,
        "learned_tau": {category: round(tau, 3) for category, tau in learned.tau.items()},
        "advice": learned.advice,
        "advice_reason": learned.reason,
    }


def _tier(name: str, tier: Tier, state: TierState) -> dict[str, Any]:
    failures = dict(state.entry_failures)
    return {
        "name": name,
        "state": state.phase,
        "power": list(tier.power),
        "gpu": tier.gpu or "cpu",
        "gpus": tier.gpus,
        "price_usd_per_hour": tier.price_usd_per_hour,
        "active_watts": tier.active_watts,
        "idle_watts": tier.idle_watts,
        "limit_watts": tier.limit_watts,
        "measured": _measured(state),
        "replicas": {
            "running": state.running,
            "starting": state.starting,
            "pending": state.pending,
            "min": tier.replicas.min,
            "max": tier.replicas.max,
        },
        "failed": state.failed,
        "reason": state.reason,
        "active_entry": state.active_entry,
        "chain": [
            {
                "name": entry.name,
                "target": entry.target,
                "max_model_len": entry.max_model_len,
                "method": entry.speculation.method if entry.speculation else None,
                "speculation": entry.speculation.model_dump() if entry.speculation else None,
                "failure": failures.get(entry.name),
            }
            for entry in tier.chain
        ],
        "drafts": _drafts(tier, state),
        "requests": {"running": state.engine_running, "waiting": state.engine_waiting},
        "queue_wait_ms": state.queue_wait_ms,
        "cold_start_s": state.cold_start_s,
        "expected_ttft_ms": tier.expected_ttft_ms,
        "expected_tokens_per_s": tier.expected_tokens_per_s,
        "recent": _recent_runs(state),
    }


def _measured(state: TierState) -> dict[str, Any] | None:
    """Return the measured watts of the tier's replicas; None: they have no meter, or none runs."""
    watts = state.watts
    return None if watts is None else {"active": watts.active, "idle": watts.idle, "reason": watts.reason}


def _recent_runs(state: TierState) -> dict[str, Any]:
    """Return the recent runs of all prompts, and of each category under `categories`."""
    categories = {name: _summary(summary) for name, summary in sorted(state.recent_by_category.items())}
    return _summary(state.recent) | {"categories": categories}


def _summary(summary: RunSummary) -> dict[str, Any]:
    """Return means and deviations; null if nothing was measured."""
    return {
        "runs": round(summary.runs, 2),
        "ttft_ms": _mean(summary.ttft_ms),
        "engine_ttft_ms": _mean(summary.engine_ttft_ms),
        "total_ms": _mean(summary.total_ms),
        "tokens_per_sec": _mean(summary.tokens_per_s),
        "completion_tokens": _mean(summary.completion_tokens),
        "acceptance_rate": summary.acceptance_rate,
        "draft_tokens": round(summary.draft_tokens, 2),
        "energy_wh": _mean(summary.energy_wh),
        "energy_measured": summary.energy_measured.mean if summary.energy_measured else None,
        "cost_usd": _mean(summary.cost_usd),
        "finish_reasons": dict(summary.finish_reasons),
        "first_logprob": _mean(summary.first_logprob),
        "worst_logprob": _mean(summary.worst_logprob),
    }


def _mean(recent: Recent | None) -> dict[str, float] | None:
    return {"mean": recent.mean, "deviation": recent.deviation} if recent else None
