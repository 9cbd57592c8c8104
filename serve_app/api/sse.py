"""The SSE events of `/api/inference` (design contract): their bytes, and what `metrics` and `config` say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import orjson

from router.plan import Plan, TraceStep
from router.registry import Profile
from serve_app.engine.interface import Finished, Token
from sustainability.factors import Factors
from sustainability.footprint import baseline_seconds, footprint
from sustainability.savings import savings

PING = b": ping\n\n"
SSE_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


def event(kind: str, data: Mapping[str, Any]) -> bytes:
    """One event: `data: {"type": kind, "data": data}` and a blank line."""
    return b"data: " + orjson.dumps({"type": kind, "data": data}) + b"\n\n"


def token_events(tokens: Sequence[Token]) -> bytes:
    """One `token` event per token, as one piece of bytes to write at once."""
    return b"".join(
        event(
            "token",
            {"text": text, "token_id": token_id, "logprob": logprob, "spec_accepted": accepted},
        )
        for text, token_id, logprob, accepted in tokens
    )


def trace_event(step: TraceStep) -> bytes:
    """One step of the trace."""
    return event("trace", {"step": step.step, "result": step.result, "duration_ms": round(step.duration_ms, 4)})


def reasoning_event(plan: Plan, text: str | None, source: Literal["claude", "agent"]) -> bytes:
    """Why this plan: the text of that source; the router's own words where there is none."""
    if text is None:
        return event("reasoning", {"text": plan.explain(), "source": "heuristic"})
    return event("reasoning", {"text": text, "source": source})


def config_data(request_id: str, plan: Plan, profile: Profile, stub: bool) -> dict[str, Any]:
    """The data of the `config` event: what was decided, before anything runs."""
    speculation = plan.entry.speculation
    return {
        "request_id": request_id,
        "mode": plan.mode,
        "power": plan.power,
        "speed": plan.speed,
        "tier": plan.tier,
        "gpu": profile.tiers[plan.tier].gpu or "cpu",
        "engine": "stub" if stub else "vllm",
        "target_model": plan.entry.target,
        "draft_model": speculation.draft if speculation else None,
        "fallback_step": plan.entry.name,
        "spec_decoding": {
            "enabled": plan.spec.enabled,
            "method": plan.spec_method,
            "K": plan.spec.most_drafts(speculation),
            "k_mode": plan.spec.k_mode,
            "tau": plan.spec.tau,
            "reason": plan.no_drafts_reason,
        },
        "sampling": {
            "max_tokens": plan.sampling.max_tokens,
            "temperature": plan.sampling.temperature,
            "top_p": plan.sampling.top_p,
        },
        "warm": plan.warm,
        "cold_start_s": plan.cold_start_s,
    }


def metrics_data(
    plan: Plan,
    profile: Profile,
    factors: Factors,
    finished: Finished,
    *,
    arrived_s: float,
    admitted_s: float,
    first_token_s: float | None,
    ended_s: float,
) -> dict[str, Any]:
    """The data of the `metrics` event.

    Args:
        plan: what was decided.
        profile: price and watts of the tier, and the savings baseline.
        factors: water and CO2 per energy.
        finished: the engine's own counts.
        arrived_s: clock when the request arrived, s.
        admitted_s: clock when the engine admitted it, s.
        first_token_s: clock when its first token came, s; None when there was none.
        ended_s: clock when its last token came, s.

    `tokens_per_sec` is completion tokens over the time on the engine (waiting in its queue excluded, prefill
    included); energy and cost are those of the whole replica over that same time.
    """
    tier, spec, baseline = profile.tiers[plan.tier], finished.spec, profile.baseline
    busy_s = max(0.0, ended_s - admitted_s - finished.queue_ms / 1000)
    used = footprint(tier.active_watts, tier.price_usd_per_hour, busy_s, factors)
    baseline_s = baseline_seconds(baseline.ttft_s, baseline.tokens_per_s, finished.completion_tokens)
    saved = savings(used, footprint(baseline.active_watts, baseline.price_usd_per_hour, baseline_s, factors))
    ttft_s = (ended_s if first_token_s is None else first_token_s) - arrived_s
    return {
        "ttft_ms": round(ttft_s * 1000, 3),
        "queue_ms": round((admitted_s - arrived_s) * 1000 + finished.queue_ms, 3),
        "total_ms": round((ended_s - arrived_s) * 1000, 3),
        "tokens_per_sec": round(finished.completion_tokens / busy_s, 3) if busy_s > 0 else 0.0,
        "prompt_tokens": finished.prompt_tokens,
        "completion_tokens": finished.completion_tokens,
        "finish_reason": finished.finish_reason,
        "spec": {
            "method": plan.spec_method,
            "steps": spec.steps,
            "draft_tokens": spec.draft_tokens,
            "accepted_tokens": spec.accepted_tokens,
            "acceptance_rate": spec.accepted_tokens / spec.draft_tokens if spec.draft_tokens else None,
            "mean_acceptance_length": 1 + spec.accepted_tokens / spec.steps if spec.steps else None,
            "steps_by_reason": spec.reasons,
            "stopped_by_tau": spec.stopped_by_tau,
        },
        "energy": {"wh": used.energy_wh, "source": "modelled"},
        "water_l": used.water_l,
        "co2_g": used.co2_g,
        "cost_usd": used.cost_usd,
        "savings": {
            "wh": saved.wh,
            "water_l": saved.water_l,
            "co2_g": saved.co2_g,
            "cost_usd": saved.cost_usd,
            "percent": saved.percent,
        },
    }
