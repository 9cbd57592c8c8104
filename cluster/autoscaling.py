"""How many replicas a tier wants: a policy on Serve's custom autoscaling interface that keeps the queue wait short.

`decide` is pure: signals and what it remembers in, a decision with its reason out. `QueueWaitPolicy` is the class that
Serve's controller calls.

What it does, in one paragraph. The work that is *offered* to a tier, in requests at once, is what its engines run plus
what piles up meanwhile (Little's law). Enough replicas are wanted to run that, and what it will have grown to when a
replica that starts now is there, with room to spare, and to work off the backlog within seconds. A queue wait that
stays although all wanted replicas run says that they can do less than their slots promise: some more. Replicas that
start count as there: what waits for them asks for nothing twice. A replica goes when nothing needed it for a while.
The room to spare is learned: as much as the work usually changes within a start, and where bursts were seen, room for
one like the largest of them.

Serve pickles this module by value and sends it to its controller, so it imports nothing of ours.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from math import ceil, sqrt
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from ray.serve.config import AutoscalingContext
from ray.util.metrics import Counter, Gauge

logger = logging.getLogger("ray.serve")

SURE = 3.0
"""Standard deviations above which growth is no chance."""
MEDIAN = 0.6745
"""Median of the absolute deviation of a normal distribution, in standard deviations."""
LONGER = 4.0
"""A cold start is believed up to so many times what was expected."""
LEARNING_PER_S = 0.002
"""Share by which the median of the changes is moved towards a change, a second."""


class ScalingSettings(BaseModel):
    """How replicas follow demand, in every tier."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    period_s: float = Field(default=1.0, gt=0, description="Control period, s.")
    wait_target_ms: float = Field(
        default=250.0,
        gt=0,
        description="Queue wait (arrival to first scheduling in the engine) that is acceptable, ms.",
    )
    headroom: float = Field(
        default=0.05, ge=0, description="Share of the offered work that is always kept free, on top of it."
    )
    deviations: float = Field(
        default=2.3,
        ge=0,
        description="Standard deviations of the work's usual change within a cold start that are always kept free.",
    )
    deviation: float = Field(
        default=0.075,
        gt=0,
        description="That standard deviation, as a share of the work, before it was seen; then it is measured, over an "
        "hour or so.",
    )
    most_headroom: float = Field(
        default=2.0,
        ge=0,
        description="Largest share that is kept free where bursts were seen: as much as the work has grown by within a "
        "cold start.",
    )
    peak_room: float = Field(
        default=1.75,
        ge=1,
        description="What is kept free for bursts is not for more than so many times the recent peak.",
    )
    bursts_s: float = Field(default=3600.0, ge=0, description="How long a burst is remembered, s.")
    clear_s: float = Field(default=5.0, gt=0, description="Time in which a backlog is to be worked off, s.")
    growth_s: float = Field(default=7.0, gt=0, description="Time over which the growth of the work is measured, s.")
    trend_s: float = Field(
        default=30.0, gt=0, description="Time over which the trend is measured that is followed for a cold start, s."
    )
    hold_s: float = Field(
        default=60.0,
        ge=0,
        description="A replica goes when it was not needed for so long, s, and for no less than a start takes; an idle "
        "tier goes by `idle_before_zero_s`.",
    )
    kv_target: float = Field(
        default=0.9, gt=0, le=1, description="Share of the KV cache in use above which another replica is wanted."
    )


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """What the policy of one tier goes by."""

    slots: int
    """Requests that one replica works on at once."""
    min_replicas: int
    max_replicas: int
    cold_start_s: float
    """From wanted to running, until one was measured, s."""
    idle_s: float
    """Idle time after which the last replica goes, s."""
    settings: ScalingSettings


@dataclass(frozen=True, slots=True)
class Signals:
    """What is seen of a tier at one moment."""

    now_s: float
    wanted: int
    """Replicas that are wanted so far."""
    running: int
    """Replicas that take requests."""
    scaled_out_s: float | None = None
    """When more replicas were last wanted."""
    queued: float = 0.0
    """Requests for which no replica is free, or there."""
    engine_running: float = 0.0
    engine_waiting: float = 0.0
    """Requests in the engines: those in a batch, and those that wait for one."""
    service_s: float = 0.0
    """Time that a request spends in an engine, mean of those that lately ended; 0: none did."""
    idle_s: float = 0.0
    """Time since any replica last had a request; 0 while one has."""
    kv_usage: float = 0.0
    """Mean share of the KV caches in use (0-1)."""
    queue_wait_ms: float = 0.0
    """Arrival to first scheduling, of the last requests that found a running replica. Waits for a replica that was
    still starting are no part of it: a cold start is no load."""


class Reason(StrEnum):
    """Why so many replicas are wanted."""

    STEADY = "steady"
    """They are enough, and all are needed."""
    WAKE = "wake"
    """Somebody waits, and there is no replica."""
    LOAD = "load"
    """The offered work needs more."""
    QUEUE_WAIT = "queue_wait"
    """Requests wait too long although all wanted replicas run."""
    KV_CACHE = "kv_cache"
    """The KV caches are full before the slots are."""
    HELD = "held"
    """Fewer would do now, but more were needed a little while ago."""
    SCALE_IN = "scale_in"
    """More than anything in the last while needed."""
    IDLE = "idle"
    """Nothing came for the idle time."""
    BOUNDED = "bounded"
    """More would be wanted than the tier may have."""


Peaks = tuple[tuple[float, float], ...]
"""(time, value), falling: the largest of every later while. The first is the largest of all."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered from decision to decision."""

    decided_s: float = float("-inf")
    work: tuple[tuple[float, float], ...] = ()
    """(time, requests in the tier), of the last `trend_s` and a cold start before that."""
    usual: float = 0.0
    """Mean of the work of the last `trend_s`."""
    deviation: float | None = None
    """Standard deviation of the work's change within a cold start, as a share of it, as measured; None: not yet."""
    bursts: Peaks = ()
    """Shares by which the work grew within a cold start."""
    most: Peaks = ()
    """Work, as long as bursts are remembered."""
    kept: Peaks = ()
    """Replicas that were needed in the hold time."""
    busy_s: float = float("-inf")
    """When the tier last had a request."""
    service_s: float = 0.0
    """Time that a request spends in an engine, smoothed; 0: none has ended yet."""
    waits_since_s: float | None = None
    """Since when requests wait too long although all wanted replicas run."""
    measured_s: float | None = None
    """The last scale-out (its time) whose cold start was measured."""
    cold_start_s: float | None = None
    """As measured, smoothed."""


@dataclass(frozen=True, slots=True)
class Decision:
    """So many replicas, and what led to it."""

    wanted: int
    reason: Reason
    signals: Signals
    offered: float
    """Work offered to the tier, requests at once."""
    needed: int
    """Replicas that the moment needs."""
    kept: int
    """Replicas that the last while needed."""
    cold_start_s: float
    memory: Memory


def decide(signals: Signals, memory: Memory, rules: ScalingRules) -> Decision:
    """The replicas that a tier wants.

    Args:
        signals: what is seen.
        memory: from the decision before; `Memory()` at first.
        rules: of the tier.
    """
    now_s = signals.now_s
    memory = _measured_start(signals, memory, rules)
    memory = _seen(signals, memory, rules)
    cold_start_s = _cold_start_s(memory, rules)

    backlog = signals.queued + signals.engine_waiting
    offered = offered_work(signals, memory, rules.settings.growth_s)
    memory = _seen_change(memory, offered, now_s, cold_start_s, rules)
    if not backlog:
        offered += sure_growth_per_s(memory, rules.settings.trend_s) * cold_start_s
    needed, reason = _needed(signals, memory, rules, offered, backlog)

    idle = now_s - memory.busy_s >= rules.idle_s
    keep = max(needed, 0 if idle else min(1, signals.wanted))
    if memory.decided_s == float("-inf"):
        # What was wanted before this memory began had its reasons.
        keep = max(keep, signals.wanted)
    # A replica that stays for less than its start took was not worth it.
    hold_s = 0.0 if idle else max(rules.settings.hold_s, cold_start_s)
    memory = replace(memory, kept=_peaks(memory.kept, now_s, min(rules.max_replicas, keep), hold_s), decided_s=now_s)
    kept = int(_largest(memory.kept))

    if needed > signals.wanted:
        wanted = needed
    elif kept < signals.wanted:
        wanted = kept
        reason = Reason.IDLE if idle and not kept else Reason.SCALE_IN
    else:
        wanted = signals.wanted
        reason = Reason.HELD if needed < wanted else Reason.STEADY
    bounded = max(rules.min_replicas, min(rules.max_replicas, wanted))
    if bounded < wanted:
        reason = Reason.BOUNDED
    if bounded > signals.wanted:
        memory = replace(memory, waits_since_s=None)
    return Decision(bounded, reason, signals, offered, needed, kept, cold_start_s, memory)


def offered_work(signals: Signals, memory: Memory, growth_s: float) -> float:
    """The requests that would run at once if none had to wait: Little's law, arrivals per second times seconds each.

    Arrivals are what ends plus what piles up; what ends, times its time in the engine, is what runs.
    """
    return signals.engine_running + sure_growth_per_s(memory, growth_s) * memory.service_s


def sure_growth_per_s(memory: Memory, window_s: float) -> float:
    """By how much the work grows that chance does not explain, requests/s; 0 where it may not grow at all.

    The slope of the least-squares line, less what Poisson traffic of that size makes of itself: in T seconds N requests
    of S seconds each change by N T / S arrivals, and as many ends, give or take the root of both.
    """
    if not memory.work or not memory.service_s:
        return 0.0
    now_s = memory.work[-1][0]
    lately = [entry for entry in memory.work if entry[0] > now_s - window_s]
    mean = sum(value for _, value in lately) / len(lately)
    chance = SURE * sqrt(2 * max(1.0, mean) / (memory.service_s * window_s))
    return max(0.0, slope(lately) - chance)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the least-squares line through (x, y); 0 with fewer than two places."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def _peaks(peaks: Peaks, now_s: float, value: float, memory_s: float) -> Peaks:
    """With one more value, and without what is older or smaller."""
    return (*(peak for peak in peaks if peak[0] > now_s - memory_s and peak[1] > value), (now_s, value))


def _seen_change(memory: Memory, offered: float, now_s: float, cold_start_s: float, rules: ScalingRules) -> Memory:
    """With the share by which the work has changed within a cold start: how much it usually does, and the bursts.

    What is usual is measured by the median, which a few bursts do not move: a step towards each change, up or down. A
    burst is growth that is no chance.
    """
    before = [value for time_s, value in memory.work if time_s <= now_s - cold_start_s]
    if not before:
        return memory
    then = max(1.0, sum(before) / len(before))
    deviation = _deviation(memory, rules)
    step = 1 + LEARNING_PER_S * rules.settings.period_s
    larger = abs(offered / then - 1) > MEDIAN * deviation
    grown = max(0.0, (offered - SURE * sqrt(offered)) / then - 1)
    return replace(
        memory,
        deviation=deviation * step if larger else deviation / step,
        bursts=_peaks(memory.bursts, now_s, grown, rules.settings.bursts_s),
        most=_peaks(memory.most, now_s, min(offered, memory.usual), rules.settings.bursts_s),
    )


def _needed(
    signals: Signals, memory: Memory, rules: ScalingRules, offered: float, backlog: float
) -> tuple[int, Reason]:
    """Replicas for this moment, and what they are needed for most."""
    if not signals.running:
        # Nobody has run anything: what waits is all that is known. It is counted in slots, not added up over the wait.
        return ceil(backlog / rules.slots), Reason.WAKE
    # As long as nobody knows how long a request takes, none is expected to end soon.
    clearing = backlog * (min(1.0, memory.service_s / rules.settings.clear_s) if memory.service_s else 1.0)
    needs = {Reason.LOAD: ceil((_with_room(offered, memory, rules) + clearing) / rules.slots)}
    if signals.kv_usage > rules.settings.kv_target:
        needs[Reason.KV_CACHE] = ceil(signals.running * signals.kv_usage / rules.settings.kv_target)
    if memory.waits_since_s is not None and signals.now_s - memory.waits_since_s >= 2 * rules.settings.period_s:
        needs[Reason.QUEUE_WAIT] = signals.running + max(1, signals.running // 10)
    reason = max(needs, key=needs.__getitem__)
    return needs[reason], reason


def _with_room(work: float, memory: Memory, rules: ScalingRules) -> float:
    """Slots for so much work, those included that are kept free.

    Free is the headroom, or room for the usual change, which is at least that of Poisson traffic; or, where bursts were
    seen, room for one like the largest of them, but not for much more work than there lately was.
    """
    settings = rules.settings
    deviation = max(_deviation(memory, rules), 1 / sqrt(max(1.0, work)))
    usual = work * (1 + max(settings.headroom, settings.deviations * deviation))
    burst = work * (1 + min(settings.most_headroom, _largest(memory.bursts)))
    return max(usual, min(burst, _largest(memory.most) * settings.peak_room))


def _deviation(memory: Memory, rules: ScalingRules) -> float:
    """As measured, else as the rules say."""
    return rules.settings.deviation if memory.deviation is None else memory.deviation


def _largest(peaks: Peaks) -> float:
    return peaks[0][1] if peaks else 0.0


def _seen(signals: Signals, memory: Memory, rules: ScalingRules) -> Memory:
    """What the signals add to the memory."""
    now_s = signals.now_s
    in_tier = signals.queued + signals.engine_waiting + signals.engine_running
    cold_start_s = _cold_start_s(memory, rules)
    since_s = now_s - rules.settings.trend_s - cold_start_s
    work = (*(entry for entry in memory.work if entry[0] > since_s), (now_s, in_tier))
    lately = [value for time_s, value in work if time_s > now_s - rules.settings.trend_s]
    usual = sum(lately) / len(lately)
    service_s, sample_s = memory.service_s, signals.service_s
    if sample_s:
        service_s = service_s + 0.1 * (sample_s - service_s) if service_s else sample_s
    all_run = signals.running >= signals.wanted
    waits = signals.queue_wait_ms > rules.settings.wait_target_ms and all_run
    waits_since_s = (now_s if memory.waits_since_s is None else memory.waits_since_s) if waits else None
    return replace(
        memory,
        work=work,
        usual=usual,
        service_s=service_s,
        waits_since_s=waits_since_s,
        busy_s=_busy_s(signals, memory),
    )


def _busy_s(signals: Signals, memory: Memory) -> float:
    """When the tier last had a request. One that was just woken, or is looked at for the first time, counts as busy."""
    times_s = [memory.busy_s, signals.scaled_out_s or float("-inf")]
    if signals.queued or memory.decided_s == float("-inf"):
        times_s.append(signals.now_s)
    if signals.running:
        times_s.append(signals.now_s - signals.idle_s)
    return max(times_s)


def _cold_start_s(memory: Memory, rules: ScalingRules) -> float:
    """As measured, else as the rules say."""
    return rules.cold_start_s if memory.cold_start_s is None else memory.cold_start_s


def _measured_start(signals: Signals, memory: Memory, rules: ScalingRules) -> Memory:
    """The cold start that has just ended, if one has: from the last scale-out to all of its replicas running.

    One that took far longer than the others waited for a node that did not come, or failed and was tried again. It is
    believed so far only; a tier whose starts really take so long is known after a few of them.
    """
    began_s = signals.scaled_out_s
    if began_s is None or began_s == memory.measured_s or signals.running < signals.wanted:
        return memory
    before_s = memory.cold_start_s
    took_s = min(signals.now_s - began_s, LONGER * _cold_start_s(memory, rules))
    return replace(
        memory,
        measured_s=began_s,
        cold_start_s=took_s if before_s is None else before_s + 0.3 * (took_s - before_s),
    )


class QueueWaitPolicy:
    """What Serve's controller calls for one tier, about ten times a second (`AutoscalingConfig.policy`).

    Serve itself wakes a tier that has no replica, with one, before it asks anybody; and it applies the tier's bounds.

    Args:
        tier: name of the tier, for logs and metrics.
        slots: requests that one replica works on at once.
        cold_start_s: expected time from wanted to running, s.
        idle_s: idle time after which the last replica goes, s.
        settings: fields of `ScalingSettings`.
    """

    def __init__(self, tier: str, slots: int, cold_start_s: float, idle_s: float, settings: dict[str, Any]) -> None:
        self._tier = tier
        self._rules = ScalingRules(slots, 0, 1, cold_start_s, idle_s, ScalingSettings.model_validate(settings))
        self._memory = Memory()
        self._wanted = Gauge("power_lever_scaling_wanted", "Replicas that the scaling policy wants.", ("tier",))
        self._signal = Gauge("power_lever_scaling_signal", "What the scaling policy decided on.", ("tier", "signal"))
        self._actions = Counter("power_lever_scaling_actions", "Changes of the wanted replicas.", ("tier", "reason"))

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Replicas wanted, and state that Serve keeps (none: it is this object's)."""
        if context.current_time - self._memory.decided_s < self._rules.settings.period_s:
            return context.target_num_replicas, {}
        rules = replace(
            self._rules,
            min_replicas=context.capacity_adjusted_min_replicas,
            max_replicas=context.capacity_adjusted_max_replicas,
        )
        decision = decide(signals_of(context), self._memory, rules)
        self._memory = decision.memory
        self._publish(decision)
        return decision.wanted, {}

    def _publish(self, decision: Decision) -> None:
        signals = {**asdict(decision.signals), "offered": decision.offered, "cold_start_s": decision.cold_start_s}
        before = decision.signals.wanted
        if decision.wanted != before:
            self._actions.inc(1, {"tier": self._tier, "reason": decision.reason})
            words = ", ".join(f"{name} {signals[name]:.3g}" for name in PUBLISHED)
            change = f"{decision.wanted} replicas instead of {before}"
            logger.info("tier %s: %s: %s (%s)", self._tier, change, decision.reason, words)
        self._wanted.set(decision.wanted, {"tier": self._tier})
        for name in PUBLISHED:
            self._signal.set(signals[name], {"tier": self._tier, "signal": name})


PUBLISHED = (
    "running",
    "queued",
    "engine_running",
    "engine_waiting",
    "kv_usage",
    "queue_wait_ms",
    "service_s",
    "idle_s",
    "offered",
    "cold_start_s",
)
"""Signals that are metrics."""


def signals_of(context: AutoscalingContext) -> Signals:
    """Serve's context in our terms: the newest word of every replica (`EngineDeployment.record_autoscaling_stats`)."""
    newest = {
        name: [series[-1].value for series in by_replica.values() if series]
        for name, by_replica in (context.raw_metrics or {}).items()
    }
    return Signals(
        now_s=context.current_time,
        wanted=context.target_num_replicas,
        running=context.current_num_replicas,
        scaled_out_s=context.last_scale_up_time,
        queued=context.total_queued_requests or 0.0,
        engine_running=sum(newest.get("engine_running", ())),
        engine_waiting=sum(newest.get("engine_waiting", ())),
        service_s=_mean([value for value in newest.get("service_s", ()) if value]),
        idle_s=min(newest.get("idle_s", ()), default=0.0),
        kv_usage=_mean(newest.get("kv_usage", ())),
        queue_wait_ms=_mean(newest.get("queue_wait_ms", ())),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
