"""The ingress's metrics: what each plan and each request adds to the series."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from cluster.observability import series
from cluster.observability.meter import Meter, bounded
from router.plan import Plan
from serve_app.api.request_record import OK, RequestRecord

JOULES_PER_WH: Final = 3600.0


class RequestMetrics:
    """Adds plans and ended requests to a meter.

    Args:
        meter: takes them.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def planned(self, make: Callable[[], Plan]) -> Plan:
        """Make a plan and count it.

        Raises:
            whatever `make` raises; then nothing is counted.
        """
        began_s = time.perf_counter()
        made = make()
        self._meter.observe(series.PLAN_DURATION, time.perf_counter() - began_s)
        category = made.classification.category
        self._meter.count(series.PLANS, 1, {"mode": made.mode, "tier": made.tier, "category": category})
        for broken in made.broken:
            self._meter.count(series.LIMITS_BROKEN, 1, {"limit": broken.limit, "tier": made.tier})
        return made

    def ended(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        plan, code = record.plan, bounded("code", record.code or OK)
        tier, category = (plan.tier, plan.classification.category) if plan else (series.NONE, series.NONE)
        where = {"route": record.route, "tier": tier, "category": category, "code": code}
        self._meter.count(series.REQUESTS, 1, where)
        for of_tier, lost in record.lost:
            self._meter.count(series.LOST, 1, {"tier": of_tier, "code": bounded("code", lost)})
        if (escalated := record.escalated) is not None:
            went = {
                "to": escalated.move.to_tier,
                "kind": escalated.move.kind,
                "applied": str(escalated.applied).lower(),
            }
            self._meter.count(series.ESCALATIONS, 1, {"tier": escalated.from_tier} | went)
        operation = {"tier": tier, "gen_ai_operation_name": series.ROUTES[record.route]}
        error = {"error_type": series.NONE if code == OK else code}
        self._meter.observe(series.REQUEST_DURATION, record.ended_s - record.arrived_s, operation | error)
        if record.metrics is not None:
            self._answered(record.metrics, record.completion_tokens, operation, {"tier": tier, "category": category})

    def _answered(
        self, metrics: Any, completion_tokens: int, operation: dict[str, str], category: dict[str, str]
    ) -> None:
        meter, tokens = self._meter, metrics["completion_tokens"]
        if tokens:
            meter.observe(series.FIRST_TOKEN, metrics["ttft_ms"] / 1000, operation)
        if tokens > 1:
            after_s = (metrics["total_ms"] - metrics["ttft_ms"]) / 1000
            meter.observe(series.EACH_TOKEN, after_s / (tokens - 1), operation)
        for kind, count in (("input", metrics["prompt_tokens"]), ("output", completion_tokens)):
            meter.observe(series.TOKEN_USAGE, count, operation | {"gen_ai_token_type": kind})
        meter.count(series.PROMPT_TOKENS, metrics["prompt_tokens"], category)
        made = _by_tier(metrics["legs"], "completion_tokens") or {operation["tier"]: completion_tokens}
        for tier, count in made.items():
            meter.count(series.COMPLETION_TOKENS, count, category | {"tier": tier})
        self._took(metrics, operation["tier"])

    def _took(self, metrics: Any, tier: str) -> None:
        """Count what the answer took, and what the baseline would have."""
        figures = {
            "share": (metrics["energy"]["wh"], metrics),
            "full": (metrics["energy"]["full_wh"], metrics["full"]),
            "baseline": (metrics["savings"]["counterfactual"]["wh"], metrics["savings"]["counterfactual"]),
        }
        # All tiers are in one place, so water and CO2 follow the energy.
        energies, costs = (_shares(_by_tier(metrics["legs"], name), tier) for name in ("energy_wh", "cost_usd"))
        for figure, (wh, took) in figures.items():
            for each, part in energies.items():
                tags = {"tier": each, "figure": figure}
                self._meter.count(series.ENERGY, wh * JOULES_PER_WH * part, tags)
                self._meter.count(series.WATER, took["water_l"] * part, tags)
                self._meter.count(series.CO2, took["co2_g"] * part, tags)
                self._meter.count(series.COST, took["cost_usd"] * costs.get(each, 0.0), tags)


def _by_tier(legs: Sequence[Mapping[str, Any]], name: str) -> dict[str, float]:
    """Return the sum of a figure of an answer's parts, by tier."""
    sums: dict[str, float] = {}
    for leg in legs:
        sums[leg["tier"]] = sums.get(leg["tier"], 0) + leg[name]
    return sums


def _shares(sums: Mapping[str, float], tier: str) -> dict[str, float]:
    """Return each tier's share (0-1); all is the given tier's if there is nothing to share."""
    whole = sum(sums.values())
    return {each: value / whole for each, value in sums.items()} if whole > 0 else {tier: 1.0}
