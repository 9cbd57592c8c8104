"""Recent requests by tier and category: reports of single runs, and summaries of many.

Times are in ms, energy in Wh, cost in USD. `history.py` makes summaries from reports. The observation has the
summaries; `router/prediction.py` and `past_drafts.py` read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

from router.difficulty.categories import Category
from router.registry import TierName
from router.signs import NO_SIGNS, Signs

FinishReason = Literal["stop", "length", "other"]
FINISH_REASONS: tuple[FinishReason, ...] = get_args(FinishReason)


@dataclass(frozen=True, slots=True)
class RunReport:
    """One finished request."""

    tier: TierName
    category: Category
    ttft_ms: float
    """Arrival to first token, as the client saw it."""
    queue_ms: float
    """The part of `ttft_ms` spent waiting: for the tier to start, for a replica, in the engine's queue."""
    total_ms: float
    """Arrival to last token."""
    tokens_per_s: float
    """Completion tokens over the time on the engine (with prefill, without waiting)."""
    completion_tokens: int
    draft_tokens: int
    """Drafts that the target verified; 0 without speculation."""
    accepted_tokens: int
    energy_wh: float
    cost_usd: float
    finish_reason: FinishReason
    energy_is_measured: bool = False
    """By the GPUs' counters; else it is modelled."""
    signs: Signs = NO_SIGNS
    """How its answer went, if it was watched."""

    @property
    def engine_s(self) -> float:
        """Time on the engine, from the end of the wait to the last token, s."""
        return max(0.0, self.total_ms - self.queue_ms) / 1000


@dataclass(frozen=True, slots=True)
class HandedOver:
    """An answer that another tier went on with. It is no run of this tier, but tells how answers here may go: without
    it the worst would be missing among them."""

    tier: TierName
    category: Category
    signs: Signs


@dataclass(frozen=True, slots=True)
class Recent:
    """One measured quantity over recent runs; the newest weigh most."""

    mean: float
    deviation: float
    """Standard deviation between runs."""
    count: float
    """Effective number of its runs: each counts 1 when it is new, and less after time and other runs."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Recent runs of one tier, all categories together or one of them. A quantity that was not measured is None."""

    runs: float = 0.0
    """Effective number of runs; 0: there was none."""
    ttft_ms: Recent | None = None
    """As the client saw it, with the wait."""
    engine_ttft_ms: Recent | None = None
    """Without the wait (`RunReport.queue_ms`): what a warm and idle tier needs."""
    ms_per_token: Recent | None = None
    """Between the first token and the last."""
    total_ms: Recent | None = None
    tokens_per_s: Recent | None = None
    completion_tokens: Recent | None = None
    energy_wh: Recent | None = None
    """Per answer."""
    energy_measured: Recent | None = None
    """1 for a run whose energy was measured, 0 for one whose was modelled; the mean is the share of the former."""
    cost_usd: Recent | None = None
    """Per answer."""
    watts: Recent | None = None
    """Energy charged to an answer over its time on the engine, W."""
    usd_per_hour: Recent | None = None
    """Cost charged to an answer over its time on the engine, USD per hour."""
    first_logprob: Recent | None = None
    worst_logprob: Recent | None = None
    """Of the answers that were watched: `Signs.first` and `Signs.worst`, at least `HOPELESS`."""
    draft_tokens: float = 0.0
    accepted_tokens: float = 0.0
    """Drafts that were verified, and those that were accepted; older ones count less."""
    finish_reasons: Mapping[FinishReason, float] = field(default_factory=lambda: MappingProxyType({}))
    """Share (0-1) of the runs by finish reason; reasons that never occurred are left out."""

    @property
    def acceptance_rate(self) -> float | None:
        """Share (0-1) of the verified drafts that were accepted; None: nothing was drafted."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens > 0 else None


NO_RUNS = RunSummary()


class TierRuns(NamedTuple):
    """The summaries of one tier."""

    all: RunSummary
    by_category: Mapping[Category, RunSummary]
    """Categories without a run are left out."""
