"""The catalogue of all metric series of this application. Code, documentation, dashboards and tests read it.

Ray exports a series with the prefix `ray_`; `GET /metrics` of the ingress shows it without. Names and units follow
Prometheus: seconds, joules, `_total` for counters. What OpenTelemetry has a name for in its conventions for generative
AI has that name, with underscores. Every label has a closed set of values: no prompt, key or request id can be one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from router.difficulty.categories import CATEGORIES
from router.registry import TIER_NAMES
from router.request import LIMITS

Kind = Literal["counter", "gauge", "histogram"]
Writer = Literal["ingress", "engine", "pool", "controller"]
Across = Literal["sum", "max", "mean"]
"""How `GET /metrics` makes one gauge of those of several replicas."""

RAY_PREFIX: Final = "ray_"
GEN_AI: Final = "gen_ai_server_"
"""OpenTelemetry's `gen_ai.server.*`, all in development: https://opentelemetry.io/docs/specs/semconv/gen-ai/."""
NONE: Final = "none"
"""Label value of what a request does not have: a tier or a category before it is planned, an error."""


@dataclass(frozen=True, slots=True)
class Series:
    """One metric.

    Args:
        name: as `GET /metrics` shows it.
        kind: of Prometheus.
        unit: of the value.
        labels: their names.
        help: what it is.
        writer: the kind of process that adds to it.
        buckets: upper bounds of a histogram, in the unit.
        across: see `Across`; for gauges.
    """

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str
    writer: Writer
    buckets: tuple[float, ...] = ()
    across: Across = "sum"

    @property
    def in_ray(self) -> str:
        """Its name at Ray's metrics ports."""
        return RAY_PREFIX + self.name

    @property
    def in_metrics(self) -> bool:
        """Whether `GET /metrics` shows it. Serve's controller, which is Ray's, reports to Ray only."""
        return self.writer != "controller"


_DURATION: Final = (
    0.01,
    0.02,
    0.04,
    0.08,
    0.16,
    0.32,
    0.64,
    1.28,
    2.56,
    5.12,
    10.24,
    20.48,
    40.96,
    81.92,
    300.0,
    900.0,
)
"""OpenTelemetry's for requests, and longer: an answer may take 900 s."""
_FIRST_TOKEN: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(30.0, 60.0, 120.0, 300.0),
)
"""OpenTelemetry's, and longer: a cold tier starts first."""
_EACH_TOKEN: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
"""OpenTelemetry's."""
_TOKENS: Final = tuple(float(4**power) for power in range(10))
"""OpenTelemetry's, as far as a context goes."""
_PLAN: Final = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1)

CODES: Final = (
    *("ok", "client_left", "bad_header", "bad_request", "bad_stub_directive", "body_timeout", "body_too_large"),
    *("channel_failed", "engine_dead", "engine_failed", "forbidden", "host_not_allowed", "internal_error"),
    *("invalid_request", "keys_unavailable", "mock_not_allowed", "origin_not_allowed", "unauthorized"),
    *("model_not_found", "not_json", "overloaded", "pool_unavailable", "prompt_too_long", "replica_lost", "stopping"),
    *(
        "rate_limit_exceeded",
        "stream_cut",
        "tier_unavailable",
        "timeout",
        "too_deep",
        "unsupported_media_type",
        "other",
    ),
)
"""How a request ended: `ok`, the client left, or the `code` of its error; `other` for a code that is not listed."""
ROUTES: Final = {
    "/api/inference": "chat",
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/messages/count_tokens": "count_tokens",
}
"""Routes whose requests are counted, with OpenTelemetry's name of the operation where it has one."""

LABELS: Final[dict[str, tuple[str, ...]]] = {
    "tier": (*TIER_NAMES, NONE),
    "category": (*CATEGORIES, NONE),
    "route": tuple(ROUTES),
    "gen_ai_operation_name": tuple(dict.fromkeys(ROUTES.values())),
    "gen_ai_token_type": ("input", "output"),
    "code": CODES,
    "error_type": (NONE, *CODES[1:]),
    "mode": ("auto", "manual"),
    "to": TIER_NAMES,
    "kind": ("climb", "descend"),
    "applied": ("true", "false"),
    "limit": tuple(LIMITS),
    "state": ("busy", "idle", "running", "waiting", "starting", "pending"),
    "source": ("measured", "modelled"),
    "figure": ("share", "full", "baseline"),
    "reason": ("steady", "wake", "load", "kv_cache", "held", "scale_in", "idle", "bounded"),
}
"""The values that each label can have."""

# --- ingress: traffic ---

REQUESTS: Final = Series(
    "power_lever_requests_total",
    "counter",
    "requests",
    ("route", "tier", "category", "code"),
    "Requests that ended, by how.",
    "ingress",
)
OPEN_REQUESTS: Final = Series(
    "power_lever_open_requests", "gauge", "requests", (), "Requests and streams that are open.", "ingress"
)
REQUEST_DURATION: Final = Series(
    f"{GEN_AI}request_duration_seconds",
    "histogram",
    "s",
    ("tier", "gen_ai_operation_name", "error_type"),
    "Time from a request's arrival to its last byte.",
    "ingress",
    _DURATION,
)
FIRST_TOKEN: Final = Series(
    f"{GEN_AI}time_to_first_token_seconds",
    "histogram",
    "s",
    ("tier", "gen_ai_operation_name"),
    "Time from a request's arrival to its first token, of complete answers.",
    "ingress",
    _FIRST_TOKEN,
)
EACH_TOKEN: Final = Series(
    f"{GEN_AI}time_per_output_token_seconds",
    "histogram",
    "s",
    ("tier", "gen_ai_operation_name"),
    "Inter-token latency: an answer's time after its first token, by its further tokens.",
    "ingress",
    _EACH_TOKEN,
)
TOKEN_USAGE: Final = Series(
    "gen_ai_client_token_usage",
    "histogram",
    "tokens",
    ("tier", "gen_ai_operation_name", "gen_ai_token_type"),
    "Tokens of a prompt (input) and of its answers (output).",
    "ingress",
    _TOKENS,
)
PROMPT_TOKENS: Final = Series(
    "power_lever_prompt_tokens_total",
    "counter",
    "tokens",
    ("tier", "category"),
    "Prompt tokens of complete answers.",
    "ingress",
)
COMPLETION_TOKENS: Final = Series(
    "power_lever_completion_tokens_total",
    "counter",
    "tokens",
    ("tier", "category"),
    "Output tokens of complete answers.",
    "ingress",
)

# --- ingress: the router ---

PLANS: Final = Series(
    "power_lever_plans_total",
    "counter",
    "plans",
    ("mode", "tier", "category"),
    "Plans that the router made; a request that its first tier did not take has several.",
    "ingress",
)
PLAN_DURATION: Final = Series(
    "power_lever_plan_duration_seconds", "histogram", "s", (), "Time of a plan.", "ingress", _PLAN
)
LOST: Final = Series(
    "power_lever_lost_replicas_total",
    "counter",
    "requests",
    ("tier", "code"),
    "Requests whose replica was lost, by how, so that another one was asked to answer or to go on.",
    "ingress",
)
ESCALATIONS: Final = Series(
    "power_lever_escalations_total",
    "counter",
    "requests",
    ("tier", "to", "kind", "applied"),
    "Answers that another tier should go on with in mid-stream, a stronger one (climb) or a weaker one to keep a limit "
    "(descend); whether it did.",
    "ingress",
)
LIMITS_BROKEN: Final = Series(
    "power_lever_plan_limits_broken_total",
    "counter",
    "limits",
    ("limit", "tier"),
    "Limits of users that the best plan will probably break.",
    "ingress",
)

# --- ingress: what answers took ---

ENERGY: Final = Series(
    "power_lever_energy_joules_total",
    "counter",
    "J",
    ("tier", "figure"),
    "Energy of complete answers: `share` of the GPU's busy time, `full` with idle time, host and site, and `baseline`, "
    "what one large GPU would have taken.",
    "ingress",
)
WATER: Final = Series(
    "power_lever_water_liters_total", "counter", "L", ("tier", "figure"), "Water of complete answers.", "ingress"
)
CO2: Final = Series(
    "power_lever_co2_grams_total", "counter", "g", ("tier", "figure"), "CO2 of complete answers.", "ingress"
)
COST: Final = Series(
    "power_lever_cost_usd_total", "counter", "USD", ("tier", "figure"), "Cost of complete answers.", "ingress"
)

# --- engines ---

ENGINE_SECONDS: Final = Series(
    "power_lever_engine_seconds_total",
    "counter",
    "s",
    ("tier", "state"),
    "Time of warm engines: `busy`, of which each answer has its share, and `idle`.",
    "engine",
)
GPU_ENERGY: Final = Series(
    "power_lever_gpu_joules_total",
    "counter",
    "J",
    ("tier", "state", "source"),
    "Energy of the GPUs of warm engines in that time: `measured` by counters, or `modelled` from the tier's watts.",
    "engine",
)
DRAFT_TOKENS: Final = Series(
    "power_lever_draft_tokens_total",
    "counter",
    "tokens",
    ("tier", "category"),
    "Draft tokens that the target model verified.",
    "engine",
)
ACCEPTED_DRAFT_TOKENS: Final = Series(
    "power_lever_accepted_draft_tokens_total",
    "counter",
    "tokens",
    ("tier", "category"),
    "Draft tokens that the target model accepted.",
    "engine",
)
ACCEPTANCE_RATE: Final = Series(
    "power_lever_acceptance_rate_ratio",
    "gauge",
    "0-1",
    ("tier", "category"),
    "Acceptance rate of the recent draft tokens of a replica.",
    "engine",
    across="mean",
)
ACCEPTANCE_DRIFT: Final = Series(
    "power_lever_acceptance_drift",
    "gauge",
    "0 or 1",
    ("tier", "category"),
    "1 while a replica's acceptance rate has clearly fallen.",
    "engine",
    across="max",
)
NGRAM_FALLBACK: Final = Series(
    "power_lever_ngram_fallback",
    "gauge",
    "0 or 1",
    ("tier",),
    "1 while n-gram drafts replace a poor draft.",
    "engine",
    across="max",
)

# --- the GPU pool, of which there is one ---

TIER_REPLICAS: Final = Series(
    "power_lever_tier_replicas",
    "gauge",
    "replicas",
    ("tier", "state"),
    "Replicas that are `running`, that are `starting` (an engine loads), or `pending` (a node is awaited).",
    "pool",
)
TIER_FAILED: Final = Series(
    "power_lever_tier_failed",
    "gauge",
    "0 or 1",
    ("tier",),
    "1 while it is useless to wait for the tier: it gave up starting, or the cluster cannot have its GPU.",
    "pool",
)
CHAIN_POSITION: Final = Series(
    "power_lever_tier_chain_position",
    "gauge",
    "entries",
    ("tier",),
    "Chain entries before the one that runs, all of which were left; 0 while none runs.",
    "pool",
)
TIER_REQUESTS: Final = Series(
    "power_lever_tier_requests",
    "gauge",
    "requests",
    ("tier", "state"),
    "Requests that are `running` or `waiting` in a tier's engines.",
    "pool",
)
QUEUE_WAIT: Final = Series(
    "power_lever_tier_queue_wait_seconds",
    "gauge",
    "s",
    ("tier",),
    "Mean time from a recent request's arrival to its engine's first work on it.",
    "pool",
)

# --- Serve's controller: scaling ---


def _signal(name: str, unit: str, meaning: str) -> Series:
    return Series(f"power_lever_scaling_{name}", "gauge", unit, ("tier",), meaning, "controller")


SCALING_ACTIONS: Final = Series(
    "power_lever_scaling_actions_total",
    "counter",
    "changes",
    ("tier", "reason"),
    "Changes of the number of replicas.",
    "controller",
)
SCALING_GAUGES: Final = {
    "wanted": _signal("wanted_replicas", "replicas", "Target number of replicas."),
    "ttft_target_ms": _signal("ttft_target_seconds", "s", "The time to first token that scaling aims at."),
    "running": _signal("running_replicas", "replicas", "Replicas that run."),
    "taken_per_s": _signal("taken_requests_per_second", "1/s", "Requests that replicas began in the last second."),
    "prompts": _signal("prompts_ratio", "0-1", "Share of recent time in which an engine had a prompt to read."),
    "queued": _signal("queued_requests", "requests", "Requests that wait for a replica."),
    "engine_running": _signal("engine_running_requests", "requests", "Requests that run in engines."),
    "engine_waiting": _signal("engine_waiting_requests", "requests", "Requests that wait in engines."),
    "kv_usage": _signal("kv_usage_ratio", "0-1", "Share of the KV caches in use."),
    "queue_wait_ms": _signal("queue_wait_seconds", "s", "Mean wait of recent requests for their engine's first work."),
    "service_s": _signal("service_seconds", "s", "Mean time of a request on a replica."),
    "idle_s": _signal("idle_seconds", "s", "Time since the tier had a request."),
    "offered_load": _signal("offered_load_requests", "requests", "Requests that are open at the same time."),
    "cold_start_s": _signal("cold_start_seconds", "s", "Expected time from a replica's request to its first answer."),
}
"""The target of the scaling policy and its inputs, by their names in `cluster/autoscaling.py`."""

CATALOGUE: Final[tuple[Series, ...]] = (
    *(REQUESTS, OPEN_REQUESTS, REQUEST_DURATION, FIRST_TOKEN, EACH_TOKEN, TOKEN_USAGE),
    *(
        PROMPT_TOKENS,
        COMPLETION_TOKENS,
        PLANS,
        PLAN_DURATION,
        LIMITS_BROKEN,
        LOST,
        ESCALATIONS,
        ENERGY,
        WATER,
        CO2,
        COST,
    ),
    *(
        ENGINE_SECONDS,
        GPU_ENERGY,
        DRAFT_TOKENS,
        ACCEPTED_DRAFT_TOKENS,
        ACCEPTANCE_RATE,
        ACCEPTANCE_DRIFT,
        NGRAM_FALLBACK,
    ),
    *(TIER_REPLICAS, TIER_FAILED, CHAIN_POSITION, TIER_REQUESTS, QUEUE_WAIT),
    *(SCALING_ACTIONS, *SCALING_GAUGES.values()),
)
"""All of them, in the order of the documentation."""
WRITERS: Final[tuple[Writer, ...]] = get_args(Writer)


def written_by(writer: Writer) -> tuple[Series, ...]:
    """Return the series that one kind of process adds to."""
    return tuple(series for series in CATALOGUE if series.writer == writer)
