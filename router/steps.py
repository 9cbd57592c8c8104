"""What the steps of planning give: one model for each, used by the `trace` events and by the tools of the same names.

Every value is JSON, so a step's result, a tool's answer to Claude and an MCP client's are the same mapping.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from router.constraints import Limit
from router.difficulty.categories import Category
from router.registry import Frozen, SpeculationMethod, TierName
from router.request import Goal


class ClassifiedPrompt(Frozen):
    """What kind of prompt it is, and how hard."""

    category: Category = Field(description="Kind of prompt.")
    difficulty: int = Field(ge=1, le=10, description="1 (a greeting) to 10 (a research problem).")
    score: float = Field(description="The difficulty before it was rounded: orders prompts of one difficulty.")
    reasons: tuple[str, ...] = Field(description="Why, strongest kind first; holds words of the tables only.")


class GoalShift(Frozen):
    """What a goal made of the choice."""

    goal: Goal = Field(description="The goal.")
    deserved_tier: TierName = Field(description="Tier by difficulty alone.")
    counted_difficulty: int = Field(ge=1, le=10, description="Difficulty that the goal makes of the prompt's own.")
    tier: TierName = Field(description="Tier for the goal; of `faster` with the limits, else before them.")
    reason: str = Field(description="In words.")


class CheckedConstraints(Frozen):
    """Which of the user's limits will be kept. Null: for ever (the tier cannot start), or nothing to say."""

    limits: tuple[str, ...] = Field(description="What the user allows.")
    wanted_tier: TierName = Field(description="Tier without the limits.")
    tier: TierName = Field(description="Tier that was chosen.")
    kept: bool = Field(description="Whether it will probably keep all limits.")
    gives_way: Limit | None = Field(description="The limit that it breaks most.")
    allowed: float | None = Field(description="What that limit allows, in the unit of its name.")
    predicted: float | None = Field(description="What is expected instead.")
    predicted_upper: float | None = Field(description="What it will hardly exceed; this is what is held to the limit.")
    broken: tuple[Limit, ...] = Field(description="All limits that it will probably break, the worst first.")
    others: tuple[str, ...] = Field(description="What the other tiers would break, as far as they were looked at.")
    ttft_ms: float | None = Field(description="Expected time to first token on the chosen tier, ms.")
    total_ms: float | None = Field(description="Expected time to the last token, ms.")
    cost_usd: float = Field(description="Expected cost, USD.")
    energy_wh: float = Field(description="Expected energy, Wh.")
    past_runs: float = Field(description="Effective number of the tier's past runs behind the prediction.")
    reason: str = Field(description="In words.")


class PastDrafts(Frozen):
    """Why past runs speak against drafting."""

    draft_tokens: float = Field(
        description="Recent draft tokens of the tier and kind of prompt; older ones count less."
    )
    acceptance_rate: float = Field(description="Share of them that was accepted (0-1).")
    reason: str = Field(description="In words.")


class TierPool(Frozen):
    """One tier, live."""

    tier: TierName = Field(description="The tier.")
    gpu: str | None = Field(description="Its accelerator type; null: CPU.")
    running: int = Field(description="Replicas that answer.")
    starting: int = Field(description="Replicas that load a model.")
    pending: int = Field(description="Replicas that wait for a place.")
    warm: bool = Field(description="Whether a replica can take a request at once.")
    cold_start_s: float = Field(description="Expected time from no replica to the first token, s; 0 when warm.")
    queue_wait_ms: float = Field(description="Arrival to first scheduling in the engine, lately, ms.")
    reason: str | None = Field(description="Why the tier is not fully up; null: nothing to say.")


class BuiltConfig(Frozen):
    """What a request would run with on a tier."""

    power: int = Field(ge=0, le=100, description="Power dial that picks the tier.")
    speed: int = Field(ge=0, le=100, description="Speed dial.")
    tier: TierName = Field(description="The tier.")
    entry: str = Field(description="The tier's chain entry that serves, or would be tried first.")
    target_model: str = Field(description="Model that answers.")
    max_tokens: int = Field(ge=1, description="Most completion tokens.")
    temperature: float = Field(description="Sampling temperature.")
    top_p: float = Field(description="Nucleus sampling mass.")
    spec_method: SpeculationMethod | None = Field(description="How drafts are made; null: no speculation.")
    spec_k: int = Field(ge=0, description="Most draft tokens per step; 0: none.")
    spec_k_mode: Literal["auto", "fixed"] = Field(description="`auto`: the controller decides up to `spec_k`.")
    spec_tau: float = Field(ge=0, le=1, description="Acceptance rate below which drafting stops.")


class RecentRuns(Frozen):
    """What recent requests were like on a tier. Null: nobody measured it."""

    tier: TierName = Field(description="The tier.")
    category: Category | None = Field(description="Kind of prompt; null: all kinds together.")
    runs: float = Field(description="Effective number of recent runs; older ones count less.")
    ttft_ms: float | None = Field(description="Time to first token, waiting included, mean, ms.")
    ttft_deviation_ms: float | None = Field(description="Its standard deviation between runs, ms.")
    engine_ttft_ms: float | None = Field(description="Time to first token without the waiting, mean, ms.")
    total_ms: float | None = Field(description="Time to last token, mean, ms.")
    tokens_per_s: float | None = Field(description="Completion tokens per second on the engine, mean.")
    completion_tokens: float | None = Field(description="Length of an answer, mean, tokens.")
    acceptance_rate: float | None = Field(description="Accepted of the verified draft tokens (0-1).")
    energy_wh: float | None = Field(description="Energy of an answer, mean, Wh.")
    cost_usd: float | None = Field(description="Cost of an answer, mean, USD.")
