"""Read the state of a running application from `GET /api/tiers` into the types that the tools work on."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from router.agent.tools import ToolContext
from router.difficulty.categories import Category
from router.observation import Observation, TierState
from router.registry import TIER_NAMES, Baseline, ChainEntry, Profile, Replicas, Speculation, Tier, TierName
from router.runs.summary import FinishReason, Recent, RunSummary


class ApplicationStateError(Exception):
    """The application does not answer, or its answer has another form than this version's."""


class _Reading(BaseModel):
    """Base of what is read: fields that only a newer application has are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class _Replicas(_Reading):
    running: int
    starting: int
    pending: int
    min: int
    max: int


class _Entry(_Reading):
    name: str
    target: str
    max_model_len: int
    speculation: Speculation | None
    failure: str | None


class _Recent(_Reading):
    mean: float
    deviation: float


class _Runs(_Reading):
    """The answer has no count for each quantity: the number of runs stands for it."""

    runs: float
    ttft_ms: _Recent | None
    engine_ttft_ms: _Recent | None
    total_ms: _Recent | None
    tokens_per_sec: _Recent | None
    completion_tokens: _Recent | None
    acceptance_rate: float | None
    draft_tokens: float
    energy_wh: _Recent | None
    cost_usd: _Recent | None
    finish_reasons: dict[FinishReason, float]

    def summary(self) -> RunSummary:
        def recent(quantity: _Recent | None) -> Recent | None:
            return Recent(quantity.mean, quantity.deviation, self.runs) if quantity else None

        return RunSummary(
            runs=self.runs,
            ttft_ms=recent(self.ttft_ms),
            engine_ttft_ms=recent(self.engine_ttft_ms),
            total_ms=recent(self.total_ms),
            tokens_per_s=recent(self.tokens_per_sec),
            completion_tokens=recent(self.completion_tokens),
            energy_wh=recent(self.energy_wh),
            cost_usd=recent(self.cost_usd),
            draft_tokens=self.draft_tokens,
            accepted_tokens=(self.acceptance_rate or 0.0) * self.draft_tokens,
            finish_reasons=self.finish_reasons,
        )


class _AllRuns(_Runs):
    categories: dict[Category, _Runs]


class _Tier(_Reading):
    name: TierName
    power: tuple[int, int]
    gpu: str
    gpus: float
    price_usd_per_hour: float
    active_watts: float
    idle_watts: float
    replicas: _Replicas
    failed: bool
    reason: str | None
    active_entry: str | None
    chain: tuple[_Entry, ...]
    queue_wait_ms: float
    cold_start_s: float
    expected_ttft_ms: float | None
    expected_tokens_per_s: float | None
    recent: _AllRuns

    def tier(self) -> Tier:
        """Return its entry in the registry."""
        return Tier(
            power=self.power,
            gpu=None if self.gpu == "cpu" else self.gpu,
            gpus=self.gpus,
            replicas=Replicas(min=self.replicas.min, max=self.replicas.max),
            price_usd_per_hour=self.price_usd_per_hour,
            active_watts=self.active_watts,
            idle_watts=self.idle_watts,
            expected_ttft_ms=self.expected_ttft_ms,
            expected_tokens_per_s=self.expected_tokens_per_s,
            chain=tuple(
                ChainEntry(
                    name=entry.name,
                    target=entry.target,
                    max_model_len=entry.max_model_len,
                    speculation=entry.speculation,
                )
                for entry in self.chain
            ),
        )

    def state(self) -> TierState:
        """Return what is known of it now."""
        return TierState(
            running=self.replicas.running,
            starting=self.replicas.starting,
            pending=self.replicas.pending,
            reason=self.reason,
            active_entry=self.active_entry,
            entry_failures=tuple((entry.name, entry.failure) for entry in self.chain if entry.failure is not None),
            failed=self.failed,
            queue_wait_ms=self.queue_wait_ms,
            cold_start_s=self.cold_start_s,
            recent=self.recent.summary(),
            recent_by_category={category: runs.summary() for category, runs in self.recent.categories.items()},
        )


class _Tiers(_Reading):
    baseline: Baseline
    tiers: tuple[_Tier, ...]


def read_tiers(body: Any) -> ToolContext:
    """Return the body of `/api/tiers` as the context of the tools outside of a request.

    Raises:
        ApplicationStateError: it is not that body.
    """
    try:
        read = _Tiers.model_validate(body)
        found = {tier.name: tier for tier in read.tiers}
        registry = {name: found[name].tier() for name in TIER_NAMES}
    except (ValidationError, KeyError) as error:
        raise ApplicationStateError(f"/api/tiers has another form than in this version: {error}") from error
    # The answer does not say where the models' weights come from, and no tool needs it.
    profile = Profile.model_construct(description="", tiers=registry, models={}, baseline=read.baseline)
    return ToolContext(profile, Observation({name: found[name].state() for name in TIER_NAMES}))
