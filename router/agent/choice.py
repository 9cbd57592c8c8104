"""What an agent may choose: a tier and a few settings, with its reason. Not yet checked against anything."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from router.agent.report import Fallback
from router.plan import TraceStep
from router.registry import DraftTokens, Frozen, Power, TierName

REASON_CHARS = 600


class AgentChoice(Frozen):
    """The agent's plan: the arguments of `submit_plan`, or the whole answer of the Agent SDK's agent."""

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


@dataclass(frozen=True, slots=True)
class Chosen:
    """How an agent's work on a plan ended."""

    ending: AgentChoice | Fallback
    steps: tuple[TraceStep, ...] = ()
    """Tools that it called, with what they gave."""
