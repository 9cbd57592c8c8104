"""How many replicas a tier needs: a custom autoscaling policy for Ray Serve that keeps queue waits short.

`decide` is pure: it takes signals and its memory, and returns a decision with its reason. Serve's controller calls
`QueueWaitPolicy`.

The policy in one paragraph. The offered load, in concurrent requests, is what the engines run plus what piles up
meanwhile (Little's law). The tier needs enough replicas for that load, plus its growth until a replica that starts now
is ready, plus headroom, plus the work to clear the backlog within seconds. If requests wait too long although all
target replicas run, the replicas can do less than their slots promise, so the tier needs some more. Starting replicas
count as present, so requests that wait for them cause no second scale-out. A replica goes when the tier has not needed
it for the hold window. The headroom is learned: as much as the load usually changes within a cold start or, after
bursts, enough for a burst like the largest of them.

Serve pickles this module by value and sends it to its controller, so it imports nothing of ours.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from math import ceil, sqrt
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field
from ray.serve.config import AutoscalingContext
from ray.util.metrics import Counter, Gauge

logger = logging.getLogger("ray.serve")

# The numbers below were chosen on the traces of `bench.autoscaling`.
PERIOD_S: Final = 1.0
"""Time between two decisions, s."""
GROWTH_WINDOW_S: Final = 7.0
"""Window in which the growth of the load is measured for Little's law, s."""
TREND_WINDOW_S: Final = 30.0
"""Window in which the trend is measured that is extrapolated over a cold start, s."""
SIGNIFICANT: Final = 3.0
"""Standard deviations above which growth is not chance."""
CLEAR_BACKLOG_S: Final = 5.0
"""Time in which a backlog should be cleared, s."""
BURST_MEMORY_S: Final = 3600.0
"""How long bursts and peaks are remembered, s."""
MOST_HEADROOM: Final = 2.0
"""Most headroom for bursts, as a share of the load."""
PEAK_FACTOR: Final = 1.75
"""Headroom for bursts covers at most this multiple of the recent peak load."""
FIRST_DEVIATION: Final = 0.075
"""Standard deviation of the load's change within a cold start, as a share of the load, until it was measured."""
DEVIATION_GAIN_PER_S: Final = 0.002
"""Share by which the measured deviation moves per second, so it adapts within an hour."""
MEDIAN: Final = 0.6745
"""Median of the absolute deviation of a normal distribution, in standard deviations."""
SERVICE_GAIN: Final = 0.1
"""Weight of a new sample in the smoothed service time."""
COLD_START_GAIN: Final = 0.3
"""Weight of a new sample in the smoothed cold start."""
LONGEST_COLD_START: Final = 4.0
"""A measured cold start counts as at most this multiple of the expected one."""
NEVER: Final = float("-inf")


class ScalingSettings(BaseModel):
    """How replicas follow demand, in every tier."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    wait_target_ms: float = Field(
        default=250.0,
        gt=0,
        description="Acceptable queue wait (arrival to first scheduling in the engine), ms.",
    )
    headroom: float = Field(default=0.05, ge=0, description="Least headroom, as a share of the offered load.")
    deviations: float = Field(
        default=2.3,
        ge=0,
        description="Headroom, in standard deviations of the load's usual change within a cold start.",
    )
    hold_s: float = Field(
        default=60.0,
        ge=0,
        description="Hold window: a replica goes when the tier has not needed it for this long, and for at least a "
        "cold start, s. An idle tier goes to zero after `idle_before_zero_s`.",
    )
    kv_target: float = Field(default=0.9, gt=0, le=1, description="KV cache usage (0-1) above which a tier scales out.")


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """Constant inputs of one tier's policy."""

    slots: int
    """Concurrent requests per replica."""
    min_replicas: int
    max_replicas: int
    cold_start_s: float
    """Expected time from requested to running, until one was measured, s."""
    idle_s: float
    """Idle time after which the last replica goes, s."""
    settings: ScalingSettings


@dataclass(frozen=True, slots=True)
class Signals:
    """State of a tier at one moment."""

    now_s: float
    target: int
    """Target number of replicas so far."""
    running: int
    """Replicas that take requests."""
    scaled_out_s: float | None = None
    """Time of the last scale-out."""
    queued: float = 0.0
    """Requests that wait in Serve for a free replica."""
    engine_running: float = 0.0
    engine_waiting: float = 0.0
    """Requests in the engines: in a batch, and waiting for one."""
    service_s: float = 0.0
    """Mean time in an engine of the requests that ended lately; 0 if none did."""
    idle_s: float = 0.0
    """Time since any replica last had a request; 0 while one has."""
    kv_usage: float = 0.0
    """Mean KV cache usage (0-1)."""
    queue_wait_ms: float = 0.0
    """Arrival to first scheduling, of recent requests that found a running replica. Waits for a starting replica are
    left out, because a cold start is not load."""


class Reason(StrEnum):
    """Why a tier has its target."""

    STEADY = "steady"
    """The replicas are enough, and all are needed."""
    WAKE = "wake"
    """Requests wait, and no replica runs."""
    LOAD = "load"
    """The offered load needs more."""
    QUEUE_WAIT = "queue_wait"
    """Requests wait too long although all target replicas run."""
    KV_CACHE = "kv_cache"
    """The KV caches are full before the slots are."""
    HELD = "held"
    """Fewer would do now, but the hold window still needs them."""
    SCALE_IN = "scale_in"
    """The hold window needs fewer."""
    IDLE = "idle"
    """No request came for the idle time."""
    BOUNDED = "bounded"
    """The tier needs more than its maximum."""


Peaks = tuple[tuple[float, float], ...]
"""Maximum over a sliding window: (time, value), falling, so the first is the largest."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What the policy remembers between decisions."""

    decided_s: float = NEVER
    load: tuple[tuple[float, float], ...] = ()
    """(time, requests in the tier), for a trend window and the cold start before it."""
    mean_load: float = 0.0
    """Mean of the load in the trend window."""
    deviation: float | None = None
    """Standard deviation of the load's change within a cold start, as a share of the load; None until measured."""
    bursts: Peaks = ()
    """Growth of the load within a cold start, as a share of it."""
    peak_load: Peaks = ()
    needed: Peaks = ()
    """Replicas needed in the hold window."""
    busy_s: float = NEVER
    """When the tier last had a request."""
    service_s: float = 0.0
    """Smoothed time that a request spends in an engine; 0 until one has ended."""
    slow_since_s: float | None = None
    """Since when requests wait too long although all target replicas run."""
    measured_scale_out_s: float | None = None
    """Time of the last scale-out whose cold start was measured."""
    cold_start_s: float | None = None
    """Smoothed; None until measured."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A target number of replicas, and what led to it."""

    target: int
    reason: Reason
    signals: Signals
    offered_load: float
    """In concurrent requests."""
    needed: int
    """Replicas needed at this moment."""
    held: int
    """Replicas needed in the hold window."""
    cold_start_s: float
    memory: Memory


def decide(signals: Signals, memory: Memory, rules: ScalingRules) -> Decision:
    """Return the target number of replicas of a tier.

    Args:
        signals: state of the tier now.
        memory: from the decision before; `Memory()` at first.
        rules: of the tier.
    """
    now_s = signals.now_s
    memory = _with_cold_start(signals, memory, rules)
    memory = _with_signals(signals, memory, rules)
    cold_start_s = _cold_start_s(memory, rules)

    backlog = signals.queued + signals.engine_waiting
    load = offered_load(signals, memory)
    memory = _with_change(memory, load, now_s, cold_start_s)
    if not backlog:
        load += significant_growth_per_s(memory, TREND_WINDOW_S) * cold_start_s
    needed, reason = _needed(signals, memory, rules, load, backlog)

    idle = now_s - memory.busy_s >= rules.idle_s
    keep = max(needed, 0 if idle else min(1, signals.target))
    if memory.decided_s == NEVER:
        # This memory does not know why the target is what it is.
        keep = max(keep, signals.target)
    # A replica should stay for at least as long as its start takes.
    hold_s = 0.0 if idle else max(rules.settings.hold_s, cold_start_s)
    in_window = _with_peak(memory.needed, now_s, min(rules.max_replicas, keep), hold_s)
    memory = replace(memory, needed=in_window, decided_s=now_s)
    held = int(_largest(in_window))

    if needed > signals.target:
        target = needed
    elif held < signals.target:
        target = held
        reason = Reason.IDLE if idle and not held else Reason.SCALE_IN
    else:
        target = signals.target
        reason = Reason.HELD if needed < target else Reason.STEADY
    bounded = max(rules.min_replicas, min(rules.max_replicas, target))
    if bounded < target:
        reason = Reason.BOUNDED
    if bounded > signals.target:
        memory = replace(memory, slow_since_s=None)
    return Decision(bounded, reason, signals, load, needed, held, cold_start_s, memory)


def offered_load(signals: Signals, memory: Memory) -> float:
    """Return how many requests would run at once if none had to wait.

    By Little's law that is the arrival rate times the service time. Arrivals are completions plus growth, and
    completions times service time are the running requests.
    """
    return signals.engine_running + significant_growth_per_s(memory, GROWTH_WINDOW_S) * memory.service_s


def significant_growth_per_s(memory: Memory, window_s: float) -> float:
    """Return the growth of the load that chance does not explain, requests/s; 0 if there is none.

    It is the slope of the least-squares line, less the noise of Poisson traffic: in T seconds, N requests of S seconds
    each change by N T / S arrivals and as many completions, each with the square root of that as standard deviation.
    """
    if not memory.load or not memory.service_s:
        return 0.0
    now_s = memory.load[-1][0]
    window = [point for point in memory.load if point[0] > now_s - window_s]
    mean = sum(value for _, value in window) / len(window)
    noise = SIGNIFICANT * sqrt(2 * max(1.0, mean) / (memory.service_s * window_s))
    return max(0.0, slope(window) - noise)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the least-squares line through (x, y), or 0 if all x are equal."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def _needed(signals: Signals, memory: Memory, rules: ScalingRules, load: float, backlog: float) -> tuple[int, Reason]:
    """Return the replicas needed at this moment, and the most demanding reason."""
    if not signals.running:
        # Nothing has run, so only the backlog is known. Count it in slots: its growth is not load, but waiting.
        return ceil(backlog / rules.slots), Reason.WAKE
    # Until the service time is known, expect no request to end soon.
    clearing = backlog * (min(1.0, memory.service_s / CLEAR_BACKLOG_S) if memory.service_s else 1.0)
    needs = {Reason.LOAD: ceil((_with_headroom(load, memory, rules) + clearing) / rules.slots)}
    if signals.kv_usage > rules.settings.kv_target:
        needs[Reason.KV_CACHE] = ceil(signals.running * signals.kv_usage / rules.settings.kv_target)
    if memory.slow_since_s is not None and signals.now_s - memory.slow_since_s >= 2 * PERIOD_S:
        needs[Reason.QUEUE_WAIT] = signals.running + max(1, signals.running // 10)
    reason = max(needs, key=needs.__getitem__)
    return needs[reason], reason


def _with_headroom(load: float, memory: Memory, rules: ScalingRules) -> float:
    """Return the load with headroom, in slots.

    The headroom covers the usual change of the load, which is at least that of Poisson traffic. After bursts it covers
    one like the largest of them, within a multiple of the recent peak load.
    """
    settings = rules.settings
    deviation = max(_deviation(memory), 1 / sqrt(max(1.0, load)))
    usual = load * (1 + max(settings.headroom, settings.deviations * deviation))
    burst = load * (1 + min(MOST_HEADROOM, _largest(memory.bursts)))
    return max(usual, min(burst, _largest(memory.peak_load) * PEAK_FACTOR))


def _with_change(memory: Memory, load: float, now_s: float, cold_start_s: float) -> Memory:
    """Add the relative change of the load within a cold start: to the usual deviation, and to the bursts.

    The deviation follows the median of the changes, in small steps up or down, so a few bursts do not move it. A burst
    is growth that chance does not explain.
    """
    before = [value for time_s, value in memory.load if time_s <= now_s - cold_start_s]
    if not before:
        return memory
    then = max(1.0, sum(before) / len(before))
    deviation = _deviation(memory)
    step = 1 + DEVIATION_GAIN_PER_S * PERIOD_S
    larger = abs(load / then - 1) > MEDIAN * deviation
    growth = max(0.0, (load - SIGNIFICANT * sqrt(load)) / then - 1)
    return replace(
        memory,
        deviation=deviation * step if larger else deviation / step,
        bursts=_with_peak(memory.bursts, now_s, growth, BURST_MEMORY_S),
        peak_load=_with_peak(memory.peak_load, now_s, min(load, memory.mean_load), BURST_MEMORY_S),
    )


def _with_signals(signals: Signals, memory: Memory, rules: ScalingRules) -> Memory:
    """Add what the signals say of load, service time and waits."""
    now_s = signals.now_s
    in_tier = signals.queued + signals.engine_waiting + signals.engine_running
    oldest_s = now_s - TREND_WINDOW_S - _cold_start_s(memory, rules)
    load = (*(point for point in memory.load if point[0] > oldest_s), (now_s, in_tier))
    window = [value for time_s, value in load if time_s > now_s - TREND_WINDOW_S]
    service_s, sample_s = memory.service_s, signals.service_s
    if sample_s:
        service_s = service_s + SERVICE_GAIN * (sample_s - service_s) if service_s else sample_s
    slow = signals.queue_wait_ms > rules.settings.wait_target_ms and signals.running >= signals.target
    slow_since_s = (now_s if memory.slow_since_s is None else memory.slow_since_s) if slow else None
    return replace(
        memory,
        load=load,
        mean_load=sum(window) / len(window),
        service_s=service_s,
        slow_since_s=slow_since_s,
        busy_s=_busy_s(signals, memory),
    )


def _with_cold_start(signals: Signals, memory: Memory, rules: ScalingRules) -> Memory:
    """Add the cold start that has just ended, if any: from the last scale-out until all its replicas run.

    One that took far longer than the others waited for a node that did not come, or failed and was retried. It counts
    only in part; a tier whose starts always take so long is known after a few of them.
    """
    began_s = signals.scaled_out_s
    if began_s is None or began_s == memory.measured_scale_out_s or signals.running < signals.target:
        return memory
    before_s = memory.cold_start_s
    took_s = min(signals.now_s - began_s, LONGEST_COLD_START * _cold_start_s(memory, rules))
    return replace(
        memory,
        measured_scale_out_s=began_s,
        cold_start_s=took_s if before_s is None else before_s + COLD_START_GAIN * (took_s - before_s),
    )


def _busy_s(signals: Signals, memory: Memory) -> float:
    """Return when the tier last had a request. A tier that was just woken, or is new to this memory, counts as busy."""
    times_s = [memory.busy_s, signals.scaled_out_s or NEVER]
    if signals.queued or memory.decided_s == NEVER:
        times_s.append(signals.now_s)
    if signals.running:
        times_s.append(signals.now_s - signals.idle_s)
    return max(times_s)


def _cold_start_s(memory: Memory, rules: ScalingRules) -> float:
    return rules.cold_start_s if memory.cold_start_s is None else memory.cold_start_s


def _deviation(memory: Memory) -> float:
    return FIRST_DEVIATION if memory.deviation is None else memory.deviation


def _with_peak(peaks: Peaks, now_s: float, value: float, window_s: float) -> Peaks:
    """Add a value; drop those that are older than the window, or not larger and earlier."""
    return (*(peak for peak in peaks if peak[0] > now_s - window_s and peak[1] > value), (now_s, value))


def _largest(peaks: Peaks) -> float:
    return peaks[0][1] if peaks else 0.0


class QueueWaitPolicy:
    """The policy of one tier, which Serve's controller calls about ten times a second (`AutoscalingConfig.policy`).

    Serve itself wakes a tier without a replica, with one, before it calls the policy. It also applies the bounds.

    Args:
        tier: name of the tier, for logs and metrics.
        slots: concurrent requests per replica.
        cold_start_s: expected time from requested to running, s.
        idle_s: idle time after which the last replica goes, s.
        settings: fields of `ScalingSettings`.
    """

    def __init__(self, tier: str, slots: int, cold_start_s: float, idle_s: float, settings: dict[str, Any]) -> None:
        self._tier = tier
        self._rules = ScalingRules(slots, 0, 1, cold_start_s, idle_s, ScalingSettings.model_validate(settings))
        self._memory = Memory()
        self._target = Gauge("power_lever_scaling_wanted", "Target number of replicas.", ("tier",))
        self._signal = Gauge("power_lever_scaling_signal", "Inputs of the scaling policy.", ("tier", "signal"))
        self._actions = Counter("power_lever_scaling_actions", "Changes of the target.", ("tier", "reason"))

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Return the target number of replicas, and state for Serve to keep (none: this object keeps its own)."""
        if context.current_time - self._memory.decided_s < PERIOD_S:
            return context.target_num_replicas, {}
        rules = replace(
            self._rules,
            min_replicas=context.capacity_adjusted_min_replicas,
            max_replicas=context.capacity_adjusted_max_replicas,
        )
        decision = decide(signals_of(context), self._memory, rules)
        self._memory = decision.memory
        self._publish(decision)
        return decision.target, {}

    def _publish(self, decision: Decision) -> None:
        signals = {
            **asdict(decision.signals),
            "offered_load": decision.offered_load,
            "cold_start_s": decision.cold_start_s,
        }
        before = decision.signals.target
        if decision.target != before:
            self._actions.inc(1, {"tier": self._tier, "reason": decision.reason})
            values = ", ".join(f"{name} {signals[name]:.3g}" for name in PUBLISHED)
            change = f"{before} -> {decision.target} replicas"
            logger.info("tier %s: %s: %s (%s)", self._tier, change, decision.reason, values)
        self._target.set(decision.target, {"tier": self._tier})
        for name in PUBLISHED:
            self._signal.set(signals[name], {"tier": self._tier, "signal": name})


PUBLISHED: Final = (
    "running",
    "queued",
    "engine_running",
    "engine_waiting",
    "kv_usage",
    "queue_wait_ms",
    "service_s",
    "idle_s",
    "offered_load",
    "cold_start_s",
)
"""Signals that are metrics."""


def signals_of(context: AutoscalingContext) -> Signals:
    """Return Serve's context as `Signals`: the newest report of each replica (`record_autoscaling_stats`)."""
    newest = {
        name: [series[-1].value for series in by_replica.values() if series]
        for name, by_replica in (context.raw_metrics or {}).items()
    }
    return Signals(
        now_s=context.current_time,
        target=context.target_num_replicas,
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
