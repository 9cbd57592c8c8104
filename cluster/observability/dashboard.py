"""The Grafana dashboard, as Grafana imports it. Tests compare the file with this, and ask a real Prometheus each query.

    python -m cluster.observability.dashboard > cluster/observability/grafana/power-lever.json

Its queries read Ray's metrics ports (prefix `ray_`), which have every node and every kind of process. They use no
histogram's `_sum`, which Ray approximates.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any, Final

from cluster.observability import series
from cluster.observability.series import SCALING_GAUGES, Series

RATE_WINDOW: Final = "$__rate_interval"
"""Grafana's variable for the time over which a rate is taken."""
_WIDTH: Final = 24
_PANELS_A_LINE: Final = 3
_HEIGHT: Final = 8
_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel: PromQL, and what to call its series (Grafana's `{{label}}`)."""

    promql: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot: its title, Grafana's unit, what it says, and its queries."""

    title: str
    unit: str
    meaning: str
    queries: tuple[Query, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one title."""

    title: str
    panels: tuple[Panel, ...]
    needs_vllm: bool = False
    """Whether its series are vLLM's own, which stub engines do not have."""


def rate(counter: Series, by: str, where: str = "") -> str:
    """Return the PromQL of a counter's growth per second, summed over processes."""
    return f"sum by ({by}) (rate({counter.in_ray}{where}[{RATE_WINDOW}]))"


def quantile(share: float, histogram: Series, by: str) -> str:
    """Return the PromQL of a histogram's quantile (0-1) by a label."""
    return f"histogram_quantile({share}, sum by (le, {by}) (rate({histogram.in_ray}_bucket[{RATE_WINDOW}])))"


def most(gauge: Series, by: str) -> str:
    """Return the PromQL of a gauge's largest value over processes."""
    return f"max by ({by}) ({gauge.in_ray})"


def _quantiles(histogram: Series) -> tuple[Query, ...]:
    return tuple(Query(quantile(share, histogram, "tier"), f"{{{{tier}}}} p{share * 100:g}") for share in (0.5, 0.95))


def _scaling(name: str) -> Query:
    return Query(most(SCALING_GAUGES[name], "tier"), "{{tier}}")


def _an_hour(counter: Series) -> tuple[Query, ...]:
    return (Query(f"3600 * {rate(counter, 'figure')}", "{{figure}}"),)


_ACCEPTED, _DRAFTED = (rate(each, "tier, category") for each in (series.ACCEPTED_DRAFT_TOKENS, series.DRAFT_TOKENS))
_SHARE: Final = rate(series.ENERGY, "tier", '{figure="share"}')
_BUSY: Final = rate(series.ENGINE_SECONDS, "tier", '{state="busy"}')
_PREFIX_QUERIES: Final = f"sum by (model_name) (rate(ray_vllm_prefix_cache_queries_total[{RATE_WINDOW}]))"
_FAILURES: Final = '{code!~"ok|client_left"}'

ROWS: Final[tuple[Row, ...]] = (
    Row(
        "Traffic and tiers",
        (
            Panel(
                "Requests",
                "reqps",
                "Requests that ended, by tier.",
                (Query(rate(series.REQUESTS, "tier"), "{{tier}}"),),
            ),
            Panel(
                "Errors",
                "reqps",
                "Requests that ended with an error, by its code.",
                (Query(rate(series.REQUESTS, "code", _FAILURES), "{{code}}"),),
            ),
            Panel(
                "Categories",
                "reqps",
                "What the router takes prompts for.",
                (Query(rate(series.PLANS, "category"), "{{category}}"),),
            ),
            Panel(
                "Open requests",
                "short",
                "In the ingress, and in the engines of each tier.",
                (
                    Query(f"sum({series.OPEN_REQUESTS.in_ray})", "ingress"),
                    Query(most(series.TIER_REQUESTS, "tier, state"), "{{tier}} {{state}}"),
                ),
            ),
            Panel(
                "Replicas",
                "short",
                "Running, starting (an engine loads), pending (a node is awaited).",
                (Query(most(series.TIER_REPLICAS, "tier, state"), "{{tier}} {{state}}"),),
            ),
            Panel(
                "Tiers in trouble",
                "short",
                "1: the tier cannot start. And how many entries of its chain it left.",
                (
                    Query(most(series.TIER_FAILED, "tier"), "{{tier}} failed"),
                    Query(most(series.CHAIN_POSITION, "tier"), "{{tier}} entries left"),
                ),
            ),
        ),
    ),
    Row(
        "Latency",
        (
            Panel(
                "Time to first token",
                "s",
                "From arrival; a cold tier's start is in it.",
                _quantiles(series.FIRST_TOKEN),
            ),
            Panel("Inter-token latency", "s", "After the first token, a token.", _quantiles(series.EACH_TOKEN)),
            Panel("Whole requests", "s", "From arrival to the last byte.", _quantiles(series.REQUEST_DURATION)),
            Panel(
                "Queue wait and target",
                "s",
                "Wait for the engine's first work, beside the time to first token that scaling aims at.",
                (
                    Query(most(series.QUEUE_WAIT, "tier"), "{{tier}}"),
                    Query(f"max({SCALING_GAUGES['ttft_target_ms'].in_ray})", "target"),
                ),
            ),
            Panel(
                "Planning",
                "s",
                "Time of a plan.",
                tuple(
                    Query(
                        f"histogram_quantile({share}, "
                        f"sum by (le) (rate({series.PLAN_DURATION.in_ray}_bucket[{RATE_WINDOW}])))",
                        f"p{share * 100:g}",
                    )
                    for share in (0.5, 0.99)
                ),
            ),
            Panel(
                "Limits that plans break",
                "reqps",
                "Users' limits that the best plan will probably break.",
                (Query(rate(series.LIMITS_BROKEN, "limit"), "{{limit}}"),),
            ),
        ),
    ),
    Row(
        "Tokens and speculation",
        (
            Panel(
                "Tokens",
                "short",
                "Tokens per second of complete answers: out, and prompts.",
                (
                    Query(rate(series.COMPLETION_TOKENS, "tier"), "{{tier}} out"),
                    Query(rate(series.PROMPT_TOKENS, "tier"), "{{tier}} prompts"),
                ),
            ),
            Panel(
                "Acceptance",
                "percentunit",
                "Of the draft tokens that were verified, those that were accepted.",
                (Query(f"{_ACCEPTED} / {_DRAFTED}", "{{tier}} {{category}}"),),
            ),
            Panel("Draft tokens", "short", "Verified per second.", (Query(_DRAFTED, "{{tier}} {{category}}"),)),
            Panel(
                "Recent acceptance of a replica",
                "percentunit",
                "The lowest of a tier's replicas.",
                (Query(f"min by (tier, category) ({series.ACCEPTANCE_RATE.in_ray})", "{{tier}} {{category}}"),),
            ),
            Panel(
                "Drift and n-gram fallback",
                "short",
                "1: acceptance has clearly fallen; n-gram drafts replace a poor draft.",
                (
                    Query(most(series.ACCEPTANCE_DRIFT, "tier, category"), "{{tier}} {{category}} drift"),
                    Query(most(series.NGRAM_FALLBACK, "tier"), "{{tier}} n-gram"),
                ),
            ),
        ),
    ),
    Row(
        "Autoscaling",
        (
            Panel(
                "Replicas wanted and running",
                "short",
                "What the policy wants, and what runs.",
                (
                    Query(most(SCALING_GAUGES["wanted"], "tier"), "{{tier}} wanted"),
                    Query(most(SCALING_GAUGES["running"], "tier"), "{{tier}} running"),
                ),
            ),
            Panel("Offered load", "short", "Requests that are open at the same time.", (_scaling("offered_load"),)),
            Panel("Requests begun", "reqps", "Requests that replicas began.", (_scaling("taken_per_s"),)),
            Panel("Waiting for a replica", "short", "Requests.", (_scaling("queued"),)),
            Panel(
                "Cold start",
                "s",
                "Expected time from a replica's request to its first answer.",
                (_scaling("cold_start_s"),),
            ),
            Panel(
                "Changes of scale",
                "short",
                "In the last ten minutes, by reason.",
                (
                    Query(
                        f"sum by (tier, reason) (increase({series.SCALING_ACTIONS.in_ray}[10m]))", "{{tier}} {{reason}}"
                    ),
                ),
            ),
        ),
    ),
    Row(
        "Energy",
        (
            Panel(
                "Power of answers",
                "watt",
                "Of complete answers: their share of the GPUs; full, with idle time, host and site; one large GPU.",
                (Query(rate(series.ENERGY, "figure"), "{{figure}}"),),
            ),
            Panel("CO2 an hour", "massg", "Of complete answers.", _an_hour(series.CO2)),
            Panel("Water an hour", "litre", "Of complete answers.", _an_hour(series.WATER)),
            Panel("Cost an hour", "currencyUSD", "Of complete answers.", _an_hour(series.COST)),
            Panel(
                "Energy a token",
                "joule",
                "Share of the GPUs, by tier.",
                (Query(f"{_SHARE} / {rate(series.COMPLETION_TOKENS, 'tier')}", "{{tier}}"),),
            ),
            Panel(
                "Busy share of warm engines",
                "percentunit",
                "The rest is idle and is paid for, too.",
                (Query(f"{_BUSY} / {rate(series.ENGINE_SECONDS, 'tier')}", "{{tier}}"),),
            ),
        ),
    ),
    Row(
        "vLLM",
        (
            Panel(
                "Output tokens of engines",
                "short",
                "Per second, also those of answers that were aborted.",
                (
                    Query(
                        f"sum by (model_name) (rate(ray_vllm_generation_tokens_total[{RATE_WINDOW}]))", "{{model_name}}"
                    ),
                ),
            ),
            Panel(
                "KV cache",
                "percentunit",
                "Share in use, the fullest engine. An engine that rests has none.",
                (Query("max by (model_name) (ray_vllm_kv_cache_usage_perc)", "{{model_name}}"),),
            ),
            Panel(
                "Prefix cache",
                "percentunit",
                "Prompt tokens that were in the cache already.",
                (
                    Query(
                        # Ray shows no counter that is 0.
                        f"(sum by (model_name) (rate(ray_vllm_prefix_cache_hits_total[{RATE_WINDOW}])) "
                        f"or 0 * {_PREFIX_QUERIES}) / {_PREFIX_QUERIES}",
                        "{{model_name}}",
                    ),
                ),
            ),
        ),
        needs_vllm=True,
    ),
)


def queries(*, needs_vllm: bool) -> list[str]:
    """Return the PromQL of all panels whose series are ours, or vLLM's."""
    rows = [row for row in ROWS if row.needs_vllm == needs_vllm]
    return [query.promql for row in rows for panel in row.panels for query in panel.queries]


def dashboard() -> dict[str, Any]:
    """Return the dashboard in Grafana's JSON model (schema 39, Grafana 11 and later)."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row in ROWS:
        panels.append(
            {
                "type": "row",
                "id": len(panels) + 1,
                "title": row.title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": 1},
                "panels": [],
            }
        )
        y += 1
        for place, panel in enumerate(row.panels):
            width = _WIDTH // _PANELS_A_LINE
            at = {
                "x": place % _PANELS_A_LINE * width,
                "y": y + place // _PANELS_A_LINE * _HEIGHT,
                "w": width,
                "h": _HEIGHT,
            }
            panels.append(_panel(panel, len(panels) + 1, at))
        y += -(-len(row.panels) // _PANELS_A_LINE) * _HEIGHT
    return {
        "uid": "power-lever",
        "title": "Power Lever",
        "description": "Generated by cluster/observability/dashboard.py.",
        "tags": ["power-lever", "vllm", "ray"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {}}
            ]
        },
        "panels": panels,
    }


def _panel(panel: Panel, number: int, at: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "id": number,
        "title": panel.title,
        "description": panel.meaning,
        "datasource": _SOURCE,
        "gridPos": at,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": _SOURCE, "expr": query.promql, "legendFormat": query.legend}
            for place, query in enumerate(panel.queries)
        ],
    }


if __name__ == "__main__":
    json.dump(dashboard(), sys.stdout, indent=2)
    sys.stdout.write("\n")
