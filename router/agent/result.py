"""What an agent gives for one request: the plan that its model submits, and the result with which its work ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, ValidationError

from router.agent.metering import Meter, Usage
from router.agent.settings import ActiveMode
from router.errors import describe_problems
from router.registry import DraftTokens, Frozen, Power, TierName
from router.trace_steps import TraceStep, TraceValue

REASON_CHARS = 600
FallbackCode = Literal[
    "no_key",
    "not_installed",
    "manual_mode",
    "busy",
    "paused",
    "daily_cap",
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
"""Those that are about the API, not about one request."""


class AgentFallback(Exception):
    """The agent gave nothing that can be used: the deterministic router's plan and words stand.

    Args:
        code: why.
        detail: the same in words, for the user; it has no secret.
    """

    def __init__(self, code: FallbackCode, detail: str) -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail


class AgentChoice(Frozen):
    """The plan that a model submits. It is not yet checked against any bounds (`bounds.py`)."""

    tier: TierName = Field(description="Tier that answers.")
    speed: Power | None = Field(
        default=None, description="Speed dial, 0 (thorough) to 100 (terse); null: leave it as it is."
    )
    k: DraftTokens | None = Field(
        default=None, description="Draft tokens per step, 0-32 or `auto`; null: leave it as it is."
    )
    tau: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Acceptance rate (0-1) below which drafting stops; null: leave it as it is.",
    )
    reason: str = Field(
        min_length=1,
        max_length=REASON_CHARS,
        description="Why, for the user, in two or three plain sentences.",
    )

    @classmethod
    def parse(cls, submitted: Any) -> AgentChoice:
        """Return the choice that a model submitted.

        Raises:
            AgentFallback: it is not a choice.
        """
        try:
            return cls.model_validate(submitted)
        except ValidationError as error:
            raise AgentFallback("bad_plan", "; ".join(describe_problems(error, cls))[:200]) from error


@dataclass(frozen=True, slots=True)
class AgentResult:
    """How the agent's work on one request ended, for the trace, `reasoning` and `metrics`."""

    mode: ActiveMode
    model: str
    usage: Usage
    cost_usd: float
    calls: int
    """Calls of the model."""
    duration_ms: float
    tools: tuple[str, ...] = ()
    """Tools that the model called, in order."""
    text: str | None = None
    """The agent's reason or explanation; None: the deterministic router's words stand."""
    fallback: FallbackCode | None = None
    """Why the deterministic router's plan or words stand; None: the agent's do."""
    detail: str | None = None
    """The fallback in words."""

    @classmethod
    def of(
        cls,
        mode: ActiveMode,
        model: str,
        meter: Meter,
        duration_ms: float,
        ending: str | AgentFallback,
        tools: tuple[str, ...] = (),
    ) -> AgentResult:
        """Return the result of work that ended with these words, or with a fallback."""
        used = (mode, model, meter.usage, meter.cost_usd, meter.calls, duration_ms, tools)
        if isinstance(ending, AgentFallback):
            return cls(*used, fallback=ending.code, detail=ending.detail)
        return cls(*used, text=ending)

    def metrics(self) -> dict[str, TraceValue]:
        """Return the `agent` part of the `metrics` event."""
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
        return data if self.fallback is None else data | {"fallback": self.fallback}

    def trace_step(self, tier: TierName) -> TraceStep:
        """Return the `agent` step of the trace of a request that this tier answers."""
        data: dict[str, TraceValue] = {"mode": self.mode, "model": self.model, "calls": self.calls, "tools": self.tools}
        if self.fallback is not None:
            data |= {"fallback": self.fallback, "detail": self.detail}
        return TraceStep("agent", data | {"tier": tier}, self.duration_ms)


@asynccontextmanager
async def time_limit(seconds: float | None, fallback: AgentFallback | None = None) -> AsyncIterator[None]:
    """Cancel what is inside after so many seconds (None: never), and raise the fallback (default: `timeout`)."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise fallback or AgentFallback("timeout", f"no end after {seconds:g} s") from None
