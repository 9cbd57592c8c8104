"""The exact record of speculation: what was drafted and accepted in every engine step of a request, and why that many.

The scheduler writes a step's record on its output (`scheduler.py`). `SpecRecords` takes it off in the replica before
vLLM's output processor merges what the consumer has not taken, so it is exact under any load. `StepsUnderWay` is the
scheduler's own memory of the steps that it has scheduled.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from router.observation import NOTHING_LEARNED, Learned
from router.registry import Drafts
from serve_app.engine.energy.meter import EnergyBilling
from serve_app.engine.interface import DraftCount, SpecStats
from serve_app.speculation.batch import Reason
from sustainability.measured import NO_METER, NOTHING_YET, Energy
from sustainability.shares import NOTHING, IdleLedger, Totals

RECORD_KEY: Final = "power_lever_step"
"""Where a step's record is in an engine output's `kv_transfer_params`, vLLM's one field that may hold anything."""

TOTALS_KEY: Final = "power_lever_totals"
"""Where now and then, and with each request's end, the engine's `Totals` of busy time are, in the same field."""

LEARNED_KEY: Final = "power_lever_learned"
"""Where now and then what the controller has learned (`Learned`) is, in the same field."""

DRAFTS_ATTRIBUTE: Final = "power_lever_drafts"
"""Attribute of the scheduler's output: the ids (a frozenset) of the requests of its step that need no draft of the
entry's own at its end. If the entry drafts in two ways, the n-gram lookup drafts for them, or nothing ever does; else
nothing ever does. All others need the entry's own."""

OWN_DEPTH_ATTRIBUTE: Final = "power_lever_own_depth"
"""Attribute of the scheduler's output: draft tokens that the entry's own draft has to make at the end of its step. The
lookup may have to make more, up to `num_spec_tokens_to_schedule`."""

MOST_UNDER_WAY: Final = 64
"""Steps that are kept: far more than vLLM has under way (two with asynchronous scheduling, else one per pipeline
stage)."""


class StepRecord(NamedTuple):
    """One engine step of one request, as it travels."""

    drafted: int = 0
    """Draft tokens verified."""
    accepted: int = 0
    """How many of them were accepted, including those that the end of the answer cut off."""
    reason: str = ""
    """Value of `Reason`: why that many were verified; "" in the step that ends the prefill, and without speculation."""
    category: str = ""
    """The request's category; "" without speculation."""
    drafts: Drafts = "own"
    """Who made them."""
    tau: float | None = None
    """In the request's last step: the acceptance rate (0-1) below which it would have stopped drafting."""
    busy_s: float = 0.0
    """Its share of the engine's busy time since its last output, s."""


class Drafted(NamedTuple):
    """What speculation had to do with one token."""

    accepted: bool = False
    """Whether a draft proposed it and the target accepted it."""
    k: int = 0
    """Draft tokens that its step verified."""


@dataclass(slots=True)
class RequestRecord:
    """The steps of one request, and what speculation had to do with each of its tokens."""

    steps: list[StepRecord] = field(default_factory=list)
    busy_s: float = 0.0
    """Its share of the engine's busy time, s."""
    idle_s: float = 0.0
    """The part of the engine's idle time that it was billed, s."""
    energy: Energy = NOTHING_YET
    """What was measured of it."""
    billed_for_s: float = 0.0
    """The part of `busy_s` for which both were billed, s."""
    _drafted: deque[Drafted] = field(default_factory=deque)

    def add(self, step: StepRecord, tokens: int) -> None:
        """Add a step, which gave that many tokens: its accepted drafts first, then one that the target sampled.

        The engine cuts the last step at a stop; then its last token may be a draft too.
        """
        self.steps.append(step)
        self.busy_s += step.busy_s
        self._drafted.extend(Drafted(position < step.accepted, step.drafted) for position in range(tokens))

    def take_drafted(self, tokens: int) -> list[Drafted]:
        """Return for each of the next tokens what speculation had to do with it; nothing where no step is known."""
        return [self._drafted.popleft() if self._drafted else Drafted() for _ in range(tokens)]

    def stats(self) -> SpecStats:
        """Return the totals of the request so far."""
        reasons = Counter(step.reason for step in self.steps if step.reason)
        drafts: dict[Drafts, DraftCount] = {}
        for step in self.steps:
            if step.drafted:
                drafts.setdefault(step.drafts, DraftCount()).add(step.drafted, step.accepted)
        return SpecStats(
            steps=sum(1 for step in self.steps if step.drafted),
            draft_tokens=sum(step.drafted for step in self.steps),
            accepted_tokens=sum(step.accepted for step in self.steps),
            reasons=dict(reasons),
            stopped_by_tau=reasons[Reason.TAU_STOPPED] > 0,
            drafts=drafts,
            tau=self.steps[-1].tau if self.steps else None,
            last_reason=self.steps[-1].reason if self.steps else "",
        )


class EngineOutput(Protocol):
    """The fields of vLLM's `EngineCoreOutput` that are used."""

    request_id: str
    new_token_ids: list[int]
    kv_transfer_params: dict[str, Any] | None


class SpecRecords:
    """Records of the requests under way, by the collector that vLLM fills for each; totals by category.

    Args:
        clock: monotonic, s. The engine is ready when this is made.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ready_s = clock()
        self._records: WeakKeyDictionary[Hashable, RequestRecord] = WeakKeyDictionary()
        self._categories: dict[str, DraftCount] = {}
        self._own = DraftCount()
        self._learned = NOTHING_LEARNED
        self._totals = NOTHING
        self._idle = IdleLedger()
        self.meter: EnergyBilling | None = None
        """Measures the engine's energy; None: it is modelled."""
        self._working_s = self._told_s = self._ready_s
        self._busy_s = 0.0

    @property
    def totals(self) -> Totals:
        """Where the engine's busy time went, as of its last report."""
        return self._totals

    @property
    def learned(self) -> Learned:
        """What the engine's controller has learned, lately."""
        return self._learned

    @property
    def up_s(self) -> float:
        """Time since the engine was ready, s."""
        return self._clock() - self._ready_s

    def began_working(self) -> None:
        """Note that the engine has a request again, after it had none."""
        self._working_s = self._clock()

    def busy_now_s(self, working: bool) -> float:
        """Return how long the engine has been busy, up to now, s; it never falls.

        The engine reports its busy time when steps end, and is busy as long as it has requests.

        Args:
            working: whether it has requests.
        """
        since_s = self._clock() - max(self._told_s, self._working_s) if working else 0.0
        self._busy_s = max(self._busy_s, self._totals.busy_s + since_s)
        return self._busy_s

    def bill(self, record: RequestRecord) -> None:
        """Bill a request that has ended its part of the engine's idle time, and its energy. Again: nothing more."""
        more_s = record.busy_s - record.billed_for_s
        idle_s = self._idle.bill(more_s, self._totals.busy_s, self.up_s)
        record.idle_s += idle_s
        record.billed_for_s = record.busy_s
        if self.meter is None:
            record.energy = NO_METER
        elif more_s:
            record.energy = record.energy.plus(self.meter.bill(more_s, idle_s, self.busy_now_s(working=False)))

    @property
    def own_drafts(self) -> DraftCount:
        """Totals of the entry's own draft model or head, over every request of the engine."""
        return self._own

    @property
    def categories(self) -> Mapping[str, DraftCount]:
        """Totals by category, over every request of the engine."""
        return self._categories

    def of(self, collector: Hashable) -> RequestRecord:
        """Return the record of the request with this collector."""
        return self._records.setdefault(collector, RequestRecord())

    def take(self, output: EngineOutput, collector: Hashable | None) -> None:
        """Take the step's record off the output, if it has one."""
        params = output.kv_transfer_params
        if not params or RECORD_KEY not in params:
            return
        if LEARNED_KEY in params:
            self._learned = Learned(*params.pop(LEARNED_KEY))
        if TOTALS_KEY in params:
            self._totals, self._told_s = Totals(*params.pop(TOTALS_KEY)), self._clock()
        step = StepRecord(*params.pop(RECORD_KEY))
        output.kv_transfer_params = params or None
        if step.category:
            self._categories.setdefault(step.category, DraftCount()).add(step.drafted, step.accepted)
            if step.drafts == "own":
                self._own.add(step.drafted, step.accepted)
        if collector is not None:
            self.of(collector).add(step, len(output.new_token_ids))


class ScheduledStep(Protocol):
    """The fields of vLLM's `SchedulerOutput` that are used."""

    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    scheduled_spec_decode_tokens: dict[str, list[int]]


@dataclass(slots=True, eq=False)
class StepUnderWay:
    """A step that is scheduled and not done. The scheduler that drafts sets what is not given at first."""

    output: ScheduledStep
    """vLLM's output of the scheduler, which identifies the step."""
    began_s: float
    """Monotonic clock when scheduling began, s."""
    reasons: Mapping[str, Reason] = field(default_factory=dict)
    """Why each request has that many drafts in it; none for a request that ends its prefill."""
    drafts: Mapping[str, Drafts] = field(default_factory=dict)
    """Who made the drafts that it verifies, by request."""
    own_depth: int = 0
    """Draft iterations of the proposer at its end, for later steps. n-gram drafts beside an own draft count none."""
    own_depth_before: int = 0
    """Those of the step before."""


class StepsUnderWay:
    """The steps that are scheduled and not done, oldest first."""

    def __init__(self) -> None:
        self._steps: deque[StepUnderWay] = deque(maxlen=MOST_UNDER_WAY)

    def __iter__(self) -> Iterator[StepUnderWay]:
        return iter(self._steps)

    @property
    def newest(self) -> StepUnderWay:
        """The step that was scheduled last."""
        return self._steps[-1]

    def began(self, step: StepUnderWay) -> None:
        """Add a step that was scheduled."""
        self._steps.append(step)

    def of(self, output: ScheduledStep) -> StepUnderWay | None:
        """Return the step of this output; None: unknown."""
        return next((step for step in self._steps if step.output is output), None)

    def done(self, output: ScheduledStep) -> StepUnderWay | None:
        """Return the step of this output, and forget it and those before it, which never end; None: unknown."""
        step = self.of(output)
        while step is not None and self._steps.popleft() is not step:
            pass
        return step
