"""How the agent's part of a request ended: what it gave, or why the deterministic router stands. All of it data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from router.agent.metering import Meter, Usage
from router.agent.settings import ActiveMode
from router.plan import TraceStep, TraceValue

FallbackCode = Literal[
    "no_key",
    "not_installed",
    "manual_mode",
    "busy",
    "paused",
    "budget",
    "timeout",
    "no_time",
    "late",
    "connection",
    "bad_request",
    "unauthorized",
    "rate_limited",
    "overloaded",
    "api_error",
    "cut_stream",
    "bad_response",
    "refusal",
    "cut_off",
    "bad_json",
    "unknown_tool",
    "no_plan",
    "bad_plan",
    "loop",
    "out_of_bounds",
    "internal_error",
]
FALLBACK_CODES: tuple[FallbackCode, ...] = get_args(FallbackCode)
API_FAILURES: frozenset[FallbackCode] = frozenset(
    {
        "timeout",
        "connection",
        "bad_request",
        "unauthorized",
        "rate_limited",
        "overloaded",
        "api_error",
        "cut_stream",
        "bad_response",
    }
)
"""Those that speak of the API, not of one request."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """Why the agent gave nothing that could be used."""

    code: FallbackCode
    detail: str
    """In words, for the user; holds no secret."""


@dataclass(frozen=True, slots=True)
class AgentReport:
    """The agent's part of one request, for its `trace` step and for `metrics`."""

    mode: ActiveMode
    model: str
    usage: Usage
    cost_usd: float
    calls: int
    """Calls of the model."""
    duration_ms: float
    tools: tuple[str, ...] = ()
    """Tools that the model called, in order."""
    fallback: Fallback | None = None

    @classmethod
    def of(
        cls,
        mode: ActiveMode,
        model: str,
        meter: Meter,
        duration_ms: float,
        *,
        tools: tuple[str, ...] = (),
        fallback: Fallback | None = None,
    ) -> AgentReport:
        """What the meter has counted by now, and how it ended."""
        return cls(mode, model, meter.usage, meter.cost_usd, meter.calls, duration_ms, tools, fallback)

    def metrics(self) -> dict[str, TraceValue]:
        """The `agent` part of the `metrics` event."""
        data: dict[str, TraceValue] = {
            "mode": self.mode,
            "model": self.model,
            "calls": self.calls,
            "input_tokens": self.usage.input_tokens,
            "output_tokens": self.usage.output_tokens,
            "cache_read_tokens": self.usage.cache_read_tokens,
            "cache_write_tokens": self.usage.cache_write_tokens,
            "cost_usd": round(self.cost_usd, 9),
            "duration_ms": round(self.duration_ms, 3),
        }
        return data if self.fallback is None else data | {"fallback": self.fallback.code}

    def trace_step(self, more: Mapping[str, TraceValue]) -> TraceStep:
        """The `agent` step of the trace, with what more there is to say."""
        said: dict[str, TraceValue] = {"mode": self.mode, "model": self.model, "calls": self.calls, "tools": self.tools}
        if self.fallback is not None:
            said |= {"fallback": self.fallback.code, "detail": self.fallback.detail}
        return TraceStep("agent", said | dict(more), self.duration_ms)
