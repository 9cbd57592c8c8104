"""What a client is shown of speculation: what is planned, and what was done. The same on all routes."""

from __future__ import annotations

from typing import Any, Final

from router.registry import ChainEntry
from router.spec_params import SpecParams, WhoDrafts
from router.trace_steps import spec_method
from serve_app.engine.interface import DraftCount, SpecStats
from serve_app.speculation.batch import Reason

_WHY_STOPPED: Final = {
    Reason.TAU_STOPPED: "the acceptance of its drafts fell under tau",
    Reason.AUTO_OFF: "drafts would have cost more time than they saved",
    Reason.SEEDED: "a sampled answer with a seed must be the same each time, so nothing is drafted for it",
}


def planned_spec(entry: ChainEntry, spec: SpecParams, drafts: WhoDrafts, no_drafts: str | None) -> dict[str, Any]:
    """Return what is planned: `spec_decoding` of the `config` event.

    Args:
        entry: that answers.
        spec: resolved on it.
        drafts: who drafts.
        no_drafts: why nothing is drafted; None: something is.
    """
    return {
        "enabled": spec.enabled,
        "method": spec_method(entry, spec),
        "K": spec.most_drafts(entry.speculation),
        "k_mode": spec.k_mode,
        "tau": spec.tau,
        "drafts": drafts._asdict(),
        "reason": no_drafts,
    }


def used_spec(stats: SpecStats) -> dict[str, Any]:
    """Return what was done: a part of `spec` of the `metrics` event, and of `speculative_decoding` on OpenAI routes."""
    return {
        "drafts": {drafts: _count(made) for drafts, made in stats.drafts.items()},
        "tau": stats.tau,
        "steps_by_reason": stats.reasons,
        "stopped_by_tau": stats.stopped_by_tau,
        "why_stopped": _why_stopped(stats),
    }


def _count(made: DraftCount) -> dict[str, Any]:
    rate = made.accepted / made.drafted if made.drafted else None
    return {"draft_tokens": made.drafted, "accepted_tokens": made.accepted, "acceptance_rate": rate}


def _why_stopped(stats: SpecStats) -> str | None:
    """Return why nothing was drafted at the end, in words; None: something was, or nothing was requested."""
    reason = stats.last_reason
    if reason == Reason.PROBE:  # of a request that was stopped
        reason = Reason.TAU_STOPPED if stats.stopped_by_tau else Reason.AUTO_OFF
    return next((words for known, words in _WHY_STOPPED.items() if known == reason), None)
