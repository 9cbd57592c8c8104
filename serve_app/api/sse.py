"""The SSE events of `/api/inference` as bytes, and the data of `config`, `status` and `metrics`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import orjson

from router.observation import TierState
from router.plan import Plan
from router.registry import Baseline, Profile
from router.trace_steps import TraceStep
from serve_app.api.bill import Bill, bill_of
from serve_app.api.spec_view import planned_spec, used_spec
from serve_app.engine.interface import Finished, Leg, Token
from sustainability.factors import Place, place_of
from sustainability.footprint import Hardware, baseline_seconds, footprint
from sustainability.savings import savings

PING: Final = b": ping\n\n"
PING_EVERY_S: Final = 0.4
"""Interval of pings on a silent stream, s. A proxy notices by a failed write that its client has left: two pings later
the engine is free, within the second that is allowed for it."""
STATUS_EVERY_S: Final = 2.0
"""Interval of `status` events before the first token, s; the contract allows 5 s."""


def event(kind: str, data: Mapping[str, Any]) -> bytes:
    """Return one event: `data: {"type": kind, "data": data}` and a blank line."""
    return b"data: " + orjson.dumps({"type": kind, "data": data}) + b"\n\n"


_TOKEN: Final = (
    b'data: {"type":"token","data":{"text":%b,"token_id":%d,"logprob":%b,"spec_accepted":%b,"spec_k":%d}}\n\n'
)
_BOOL: Final = (b"false", b"true")


def token_events(tokens: Sequence[Token]) -> bytes:
    """Return one `token` event per token, as bytes to write at once."""
    # The hottest line of all: a template takes 0.6 of the time of `event`.
    return b"".join(
        [
            _TOKEN % (orjson.dumps(text), token_id, orjson.dumps(logprob), _BOOL[accepted], k)
            for text, token_id, logprob, accepted, k in tokens
        ]
    )


def trace_event(step: TraceStep) -> bytes:
    """Return the event of a trace step."""
    return event("trace", {"step": step.step, "result": step.result, "duration_ms": round(step.duration_ms, 4)})


def reasoning_event(plan: Plan, text: str | None, source: Literal["claude", "agent"]) -> bytes:
    """Return why this plan was made: the source's text, or the router's own if the source gave none."""
    if text is None:
        return event("reasoning", {"text": plan.explain(), "source": "heuristic"})
    return event("reasoning", {"text": text, "source": source})


def config_data(
    request_id: str, plan: Plan, profile: Profile, stub: bool, decision_id: str | None = None
) -> dict[str, Any]:
    """Return the data of the `config` event: what was decided before anything runs."""
    speculation = plan.entry.speculation
    return {
        "request_id": request_id,
        "decision_id": decision_id,
        "mode": plan.mode,
        "power": plan.power,
        "speed": plan.speed,
        "tier": plan.tier,
        "gpu": profile.tiers[plan.tier].gpu or "cpu",
        "engine": "stub" if stub else "vllm",
        "target_model": plan.entry.target,
        "draft_model": speculation.draft if speculation else None,
        "fallback_step": plan.entry.name,
        "spec_decoding": planned_spec(plan.entry, plan.spec, plan.drafts, plan.no_drafts_reason),
        "sampling": {
            "max_tokens": plan.sampling.max_tokens,
            "temperature": plan.sampling.temperature,
            "top_p": plan.sampling.top_p,
        },
        "warm": plan.warm,
        "cold_start_s": plan.cold_start_s,
    }


def status_data(state: TierState, waited_s: float, queued: bool) -> dict[str, Any]:
    """Return the data of a `status` event.

    Args:
        state: of the tier.
        waited_s: time since the request arrived, s.
        queued: whether the request only waits for its turn, not for a replica.
    """
    if queued:
        name, estimate_s = "queued", state.queue_wait_ms / 1000
    else:
        name = "loading" if state.starting else "provisioning"
        estimate_s = max(0.0, state.cold_start_s - waited_s)
    return {"state": name, "waited_s": round(waited_s, 3), "estimate_s": round(estimate_s, 3), "reason": state.reason}


def resumed_data(waited_s: float, reason: str) -> dict[str, Any]:
    """Return the data of the `status` event of an answer that another replica goes on with.

    Args:
        waited_s: time since the request arrived, s.
        reason: why the one before was lost.
    """
    return {"state": "resumed", "waited_s": round(waited_s, 3), "estimate_s": 0.0, "reason": reason}


def metrics_data(
    plan: Plan,
    profile: Profile,
    finished: Finished,
    *,
    arrived_s: float,
    admitted_s: float,
    first_token_s: float | None,
    ended_s: float,
    legs: Sequence[Leg] = (),
) -> dict[str, Any]:
    """Return the data of the `metrics` event.

    `tokens_per_sec` is completion tokens over the time on the engine (prefill included, its queue excluded). Energy and
    cost are those of the whole replica over the answer's share of the engine's busy time. The baseline is taken to
    share its time among as many requests.

    Args:
        plan: what was decided.
        profile: price and watts of the tier, the savings baseline, and the place.
        finished: the engine's own counts.
        arrived_s: clock when the request arrived, s.
        admitted_s: clock when the engine admitted it, s.
        first_token_s: clock when its first token came, s; None if there was none.
        ended_s: clock when its last token came, s.
        legs: which replica gave which part; none is one.
    """
    engine_s = max(0.0, ended_s - admitted_s - finished.queue_ms / 1000)
    # The engine's own clock: of an answer of some ms, the way to the ingress takes a good part.
    shared_s = engine_s if finished.engine_s is None else finished.engine_s
    batch = max(1.0, shared_s / finished.busy_s) if finished.busy_s > 0 else 1.0
    place = place_of(profile.energy)
    bill = bill_of(profile, plan.tier, finished, legs, place)
    made = max(finished.completion_tokens, sum(leg.completion_tokens for leg in legs))
    ttft_s = (ended_s if first_token_s is None else first_token_s) - arrived_s
    return {
        "ttft_ms": round(ttft_s * 1000, 3),
        "queue_ms": round((admitted_s - arrived_s) * 1000 + finished.queue_ms, 3),
        "total_ms": round((ended_s - arrived_s) * 1000, 3),
        # With those that were withdrawn, which took their time.
        "tokens_per_sec": round(made / engine_s, 3) if engine_s > 0 else 0.0,
        "prompt_tokens": finished.prompt_tokens,
        "completion_tokens": finished.completion_tokens,
        "finish_reason": finished.finish_reason,
        "spec": _spec_data(plan, finished),
        "busy_s": round(bill.busy_s, 6),
        "legs": bill.legs,
        "mean_batch": round(batch, 3),
        "energy": {
            "wh": bill.used.energy_wh,
            "full_wh": bill.full.energy_wh,
            "range": bill.range_wh,
            "source": bill.source,
            "reason": bill.reason,
        },
        "water_l": bill.used.water_l,
        "co2_g": bill.used.co2_g,
        "cost_usd": bill.used.cost_usd,
        "full": {"water_l": bill.full.water_l, "co2_g": bill.full.co2_g, "cost_usd": bill.full.cost_usd},
        "place": {
            "site": profile.energy.site,
            "grid": profile.energy.grid,
            "pue": place.pue,
            "water_l_per_kwh": place.water_l_per_kwh,
            "co2_kg_per_kwh": place.co2_kg_per_kwh,
            "carbon": place.carbon,
        },
        "savings": _savings_data(bill, profile.baseline, finished.completion_tokens, batch, place),
    }


def _spec_data(plan: Plan, finished: Finished) -> dict[str, Any]:
    spec = finished.spec
    return {
        "method": plan.spec_method,
        "steps": spec.steps,
        "draft_tokens": spec.draft_tokens,
        "accepted_tokens": spec.accepted_tokens,
        "acceptance_rate": spec.accepted_tokens / spec.draft_tokens if spec.draft_tokens else None,
        "mean_acceptance_length": 1 + spec.accepted_tokens / spec.steps if spec.steps else None,
        **used_spec(spec),
    }


def _savings_data(bill: Bill, baseline: Baseline, tokens: int, batch: float, place: Place) -> dict[str, Any]:
    """Return what the baseline would have taken more for so many tokens, among as many requests at a time."""
    busy_s = baseline_seconds(baseline.ttft_s, baseline.tokens_per_s, tokens) / batch
    instead = footprint(Hardware(1, baseline.active_watts, 0.0, baseline.price_usd_per_hour), busy_s, place)
    saved = savings(bill.used, instead)
    return {
        "wh": saved.wh,
        "water_l": saved.water_l,
        "co2_g": saved.co2_g,
        "cost_usd": saved.cost_usd,
        "percent": saved.percent,
        "counterfactual": {
            **baseline.model_dump(),
            "mean_batch": round(batch, 3),
            "busy_s": round(busy_s, 6),
            "completion_tokens": tokens,
            "wh": instead.energy_wh,
            "water_l": instead.water_l,
            "co2_g": instead.co2_g,
            "cost_usd": instead.cost_usd,
        },
    }
