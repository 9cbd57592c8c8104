"""How many replicas a tier needs: a custom autoscaling policy for Ray Serve that buys as few misses as was requested.

`decide` is pure: it takes signals and its memory, and returns a decision with its reason. Serve's controller calls
`DemandPolicy`.

The policy in one paragraph. What a replica can do is measured: how long its requests and their prompts take, by how
many it runs. A rule is a level of the load (its mean over the last seconds, minutes or half hour, its trend, this time
yesterday, or all that the tier can do), times some room; it follows only its level, or also the load as it is. Every
second every rule is tried on the requests that came: how many replicas it would have requested, which of them would
have been ready after a cold start, how many requests would have waited for a slot and for other prompts until their
first token was late, and what it would have cost. The last hour counts. The tier follows the cheapest rule under which
no more requests than the operator's share would have missed the target, with some room for a burst that was not seen;
if none is so good, the one that misses least, within what may be spent. Starting replicas count as present, so requests
that wait for them cause no second scale-out. A replica goes when the rule has not needed it for a cold start.

Serve pickles this module by value and sends it to its controller, so it imports nothing of ours.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from math import ceil, exp, sqrt
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from ray.serve.config import AutoscalingContext
from ray.util.metrics import Counter, Gauge

logger = logging.getLogger("ray.serve")

Floats = NDArray[np.float64]

# The numbers below were chosen on made traffic (docs/decisions/0053, 0069), none of which `bench.autoscaling` reports.
PERIOD_S: Final = 1.0
"""Time between two decisions, s."""
LONGEST_PERIOD_S: Final = 5.0
"""A decision after a longer time (the tier slept, or the controller was busy) learns from this much, s."""
MEANS_S: Final = (10.0, 60.0, 300.0, 1800.0)
"""Time constants of the levels that are means, s."""
SHORTEST_S: Final = 30.0
"""Means count as over at least this time, so that the first request alone is no load, s."""
ROOMS: Final = (0.6, 0.75, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.2, 4.5, 7.0)
"""Multiples of a level that rules keep."""
SHARES: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Shares of all replicas that rules keep."""
LARGER: Final = (1.0, 1.25)
"""Traffic is tried as it came, and so many times larger."""
NEAR: Final = 1.03
"""Of the rules that cost at most so many times as much as the cheapest, the one decides that misses least if traffic is
larger."""
BURST: Final = 4.0
BURST_CHANCE: Final = 0.2
"""A burst to so many times the mean load, for a cold start, is expected with this chance beside what was seen."""
FORGET_S: Final = 3600.0
"""Time constant with which misses and costs of the rules are forgotten, s."""
LEARN_S: Final = 600.0
"""A policy that has seen less than this keeps the replicas that it found, except of an idle tier, s."""
PARTS: Final = 6
"""Parts of a cold start in which the rules' targets are remembered."""
SPEED_S: Final = 60.0
"""Time constant of the means from which a replica's throughput is estimated, s."""
WHOLE: Final = 0.85
"""Share of such a mean that must have been seen: requests come before they run, so the first seconds show too few."""
SLOWER: Final = 5.0
"""Until it was seen, a full replica is expected to take 1 + this many times as long for a request as an empty one."""
EXPECTED: Final = 0.02
"""Weight of that expectation, in requests times the squared share of the slots that were in use."""
STEEPEST: Final = 0.9
"""Share of a request's time that may come from the other requests that its replica runs."""
EVIDENCE: Final = 20.0
"""Requests, each times the utilization of its replica, from which on room is kept for a burst. Before, no replica was
busy, and what one can do is only expected."""
USABLE: Final = 0.9
"""Utilization above which replicas let requests wait, because not all are equally busy."""
CLEAR_BACKLOG_S: Final = 5.0
"""Time in which a backlog should be cleared, s."""
KV_TARGET: Final = 0.9
"""KV cache usage (0-1) above which a tier scales out."""
DAY_S: Final = 86_400.0
DAY_PARTS: Final = 288
"""Parts of a day whose load is remembered."""
COLD_START_GAIN: Final = 0.3
"""Weight of a new sample in the smoothed cold start."""
LONGEST_COLD_START: Final = 4.0
"""A measured cold start counts as at most this multiple of the expected one."""
NEVER: Final = float("-inf")

_ALL: Final = len(MEANS_S) + 2
_NOTHING, _AT_ONCE, _MINUTE = range(3)
_RULES: Final = [
    (level, room, follows)
    for level in range(_ALL + 1)
    for room in (SHARES if level == _ALL else ROOMS)
    for follows in (_NOTHING, _AT_ONCE, _MINUTE)
]
LEVEL: Final = np.array([level for level, _, _ in _RULES])
ROOM: Final = np.array([room for _, room, _ in _RULES])
FOLLOWS: Final = np.array([follows for _, _, follows in _RULES])
"""By rule: its level (the means, the trend, the time of day, all replicas), its room, and what load it also follows:
none, that of the last seconds, or that of the last minute."""
_LARGER: Final = np.array(LARGER)[:, None]


class ScalingSettings(BaseModel):
    """How replicas follow demand, in every tier."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ttft_target_ms: float = Field(
        default=2000.0, gt=0, description="Target of the time to the first token, ms. A longer one is a miss."
    )
    miss_share: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="Share of the requests (0-1) that may miss the target. Fewer misses cost more replicas.",
    )
    most_spend: float = Field(
        default=10.0,
        ge=1,
        description="Most replicas that are kept to avoid misses, as a multiple of those that the mean load needs.",
    )


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
    taken_per_s: float = 0.0
    """Requests that replicas took lately, per second."""
    prompts: float = 0.0
    """Share of the time (0-1) in which an engine had prompts to read, lately."""
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
    """Arrival to first scheduling, of recent requests that found a running replica."""

    @property
    def waiting(self) -> float:
        """Requests that wait, in Serve or in an engine."""
        return self.queued + self.engine_waiting


class Reason(StrEnum):
    """Why a tier has its target."""

    STEADY = "steady"
    """The replicas are enough, and all are needed."""
    WAKE = "wake"
    """Requests wait, and no replica runs."""
    LOAD = "load"
    """The offered load needs more, with the room that keeps the share of misses."""
    KV_CACHE = "kv_cache"
    """The KV caches are full before the slots are."""
    HELD = "held"
    """Fewer would do now, but a replica that went could be needed again before another one has started."""
    SCALE_IN = "scale_in"
    """Fewer have been enough for a cold start."""
    IDLE = "idle"
    """No request came for the idle time."""
    BOUNDED = "bounded"
    """The tier needs more than its maximum."""


Peaks = tuple[tuple[float, float], ...]
"""Maximum over a sliding window: (time, value), falling, so the first is the largest."""


def _zeros() -> Floats:
    return np.zeros(len(_RULES))


def _zeros_by_traffic() -> Floats:
    return np.zeros((len(LARGER), len(_RULES)))


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """What every rule would have done, by rule. Arrays are never changed in place."""

    ready: Floats = field(default_factory=_zeros)
    """Replicas that take requests."""
    running: Floats = field(default_factory=_zeros_by_traffic)
    queued: Floats = field(default_factory=_zeros_by_traffic)
    prompts_s: Floats = field(default_factory=_zeros_by_traffic)
    """Requests that hold a slot and that wait for one, and the work of the prompts not read yet, replica-seconds; by
    `LARGER` and rule."""
    missed: Floats = field(default_factory=_zeros_by_traffic)
    """Requests that missed the target, by `LARGER` and rule; older ones are forgotten slowly, as in the next four."""
    cost: Floats = field(default_factory=_zeros)
    """Replica-seconds."""
    requests: float = 0.0
    load: float = 0.0
    """Load, in replica-seconds."""
    seen_s: float = 0.0
    part_s: float = 0.0
    """Time of the newest part."""
    wanted: tuple[Floats, ...] = ()
    """Most replicas that each rule needed in each part of the last cold start, the newest last."""
    requested: tuple[Floats, ...] = ()
    """Fewest replicas that each rule had requested in each part: those are ready now."""


@dataclass(frozen=True, slots=True)
class Speed:
    """How long replicas took for requests, and how many they ran meanwhile. All fields from `requests` on are sums over
    requests, which forget.
    """

    taken_per_s: float = 0.0
    running_each: float = 0.0
    prompts_each: float = 0.0
    weight: float = 0.0
    """Recent means of a replica: requests that it took, per second; that it ran; share of its time with prompts. The
    last one is how much of such a mean was seen (0-1)."""
    requests: float = 0.0
    busy: float = 0.0
    """Requests times the utilization (0-1) of their replica."""
    running: float = 0.0
    running_squared: float = 0.0
    service_s: float = 0.0
    service_squared: float = 0.0
    running_service: float = 0.0
    prompt_s: float = 0.0
    running_prompt: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """What the policy remembers between decisions."""

    decided_s: float = NEVER
    found: int = 0
    """Replicas at the first decision."""
    queued: float = 0.0
    waiting: float = 0.0
    """Requests of the decision before."""
    waiting_since_s: float | None = None
    """Since when there were always requests that waited."""
    levels: tuple[float, ...] = (0.0,) * len(MEANS_S)
    weights: tuple[float, ...] = (0.0,) * len(MEANS_S)
    """Sums for the means of the load, requests per second, and their weights."""
    day: tuple[float, ...] = ()
    """Mean load by part of the day."""
    day_part: int = -1
    speed: Speed = Speed()
    trial: Trial = field(default_factory=Trial)
    needed: Peaks = ()
    """Replicas needed in the last cold start."""
    busy_s: float = NEVER
    """When the tier last had a request."""
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
    """Replicas needed in the last cold start."""
    cold_start_s: float
    rule: int | None
    """The rule that the tier follows, as an index of `LEVEL`; None until requests have ended."""
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
    cold_start_s = _cold_start_s(memory, rules)
    memory = replace(memory, busy_s=_busy_s(signals, memory))
    idle = now_s - memory.busy_s >= rules.idle_s
    if memory.decided_s == NEVER:
        memory = replace(memory, found=signals.target)

    arrived, elapsed_s = arrivals(signals, memory)
    memory = _with_levels(memory, arrived / elapsed_s, now_s, elapsed_s)
    memory = _with_speed(signals, memory, rules, arrived, elapsed_s)
    can = throughput(memory.speed, rules.slots)
    rule: int | None = None
    wanted: Floats | None = None
    per_s = can.per_s if can else 0.0
    if can:
        wanted = replicas_wanted(memory, now_s, cold_start_s, per_s, rules)
        memory = replace(
            memory, trial=_tried(now_s, memory.trial, rules, wanted, arrived, elapsed_s, cold_start_s, can)
        )
        rule = choice(memory.trial, rules, cold_start_s * per_s if memory.speed.busy >= EVIDENCE else 0.0)

    needed, reason = (0, Reason.IDLE) if idle else _needed(signals, memory, rules, wanted, rule, per_s, cold_start_s)
    keep = max(needed, 0 if idle else min(1, signals.target))
    if memory.trial.seen_s < LEARN_S and not idle:
        # Somebody had a reason for the replicas that were there before.
        keep = max(keep, min(memory.found, signals.target))
    held_s = 0.0 if idle else cold_start_s
    in_window = _with_peak(memory.needed, now_s, min(rules.max_replicas, keep), held_s)
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
    offered = _level(memory, 0) * signals.service_s
    return Decision(bounded, reason, signals, offered, needed, held, cold_start_s, rule, memory)


def arrivals(signals: Signals, memory: Memory) -> tuple[float, float]:
    """Return the requests that came since the last decision, and the time since then, s."""
    elapsed_s = min(LONGEST_PERIOD_S, max(PERIOD_S / 2, signals.now_s - memory.decided_s))
    if memory.decided_s == NEVER:
        elapsed_s = PERIOD_S
    return max(0.0, signals.taken_per_s * elapsed_s + signals.queued - memory.queued), elapsed_s


class Throughput(NamedTuple):
    """What a replica can do.

    Two things limit it: its slots, each of which a request holds for its service time, and its prompts, which it reads
    one after the other. Both times grow with the requests that it runs.
    """

    per_s: float
    """Requests that it can take per second."""
    service_s: float
    service_more_s: float
    """Time that a request holds its slot on an empty replica, and how much more for each request that runs, s."""
    prompt_s: float
    prompt_more_s: float
    """Time for its prompt, likewise."""
    longest_s: float
    """Most time that a request holds its slot, s."""


def throughput(speed: Speed, slots: int) -> Throughput | None:
    """Return what a replica can do, from lines that are fitted to what was seen; None until something was."""
    if not speed.service_s:
        return None
    service_s, service_more = _line(speed, speed.service_s, speed.running_service, slots)
    prompt_s, prompt_more = _line(speed, speed.prompt_s, speed.running_prompt, slots)
    mean_s, full = speed.service_s / speed.requests, speed.running / speed.requests / slots
    deviation_s = sqrt(max(0.0, speed.service_squared / speed.requests - mean_s**2))
    longest_s = max(mean_s * (1 + SLOWER) / (1 + SLOWER * full), mean_s + 3 * deviation_s)
    longest_s = min(longest_s, service_s + service_more * slots)
    per_s = slots / longest_s
    # The rate at which prompts take all the time: rate (prompt_s + prompt_more running) = 1, and Little's law gives
    # running = rate (service_s + service_more running).
    linear = prompt_s + service_more
    square = prompt_more * service_s - prompt_s * service_more
    if linear:
        per_s = min(per_s, 2 / (linear + sqrt(max(0.0, linear**2 + 4 * square))))
    return Throughput(per_s, service_s, service_more, prompt_s, prompt_more, longest_s)


def _line(speed: Speed, total: float, products: float, slots: int) -> tuple[float, float]:
    """Return what a request takes on an empty replica, and how much more for each request that the replica runs, s.

    Args:
        speed: what was seen.
        total: sum over the requests of the time that each took, s.
        products: sum of that time multiplied by the requests that its replica ran.
        slots: of a replica.
    """
    requests = speed.requests
    running, mean = speed.running / requests, total / requests
    expected = mean * SLOWER / (slots + SLOWER * running)
    spread = speed.running_squared - running * speed.running
    known = EXPECTED * slots**2
    more = (products - running * total + known * expected) / (spread + known)
    more = min(max(0.0, more), STEEPEST * mean / max(running, 1e-9))
    return mean - more * running, more


def replicas_wanted(memory: Memory, now_s: float, cold_start_s: float, per_s: float, rules: ScalingRules) -> Floats:
    """Return how many replicas each rule needs now."""
    recent, minute, minutes = (_level(memory, level) for level in range(3))
    growth = max(0.0, minute - minutes) / (MEANS_S[2] - MEANS_S[1])
    trend = minute + growth * (MEANS_S[1] + cold_start_s)
    levels = [_level(memory, level) for level in range(len(MEANS_S))]
    levels += [trend, _of_day(memory, now_s, cold_start_s), rules.max_replicas * USABLE * per_s]
    most = np.maximum(ROOM * np.array(levels)[LEVEL], np.array([0.0, recent, minute])[FOLLOWS])
    whole = np.ceil(most / (USABLE * per_s) - 1e-6)
    return np.asarray(np.clip(whole, max(1, rules.min_replicas), max(1, rules.max_replicas)))


def choice(trial: Trial, rules: ScalingRules, takes: float) -> int:
    """Return the cheapest rule that keeps the share of misses; without one, the one that misses least.

    Rules that cost more than may be spent are left out, except where all do.

    Args:
        trial: what the rules would have done.
        rules: of the tier.
        takes: requests that a replica takes within a cold start, for the burst that was not seen yet.
    """
    seen_s = max(trial.seen_s, 1e-9)
    # What all replicas could not take either is not missed for want of room.
    burst = min(BURST * trial.load / seen_s, USABLE * rules.max_replicas)
    unseen = np.clip(burst - USABLE * trial.cost / seen_s, 0.0, None)
    missed = trial.missed + BURST_CHANCE * takes * unseen
    share = missed[0] / max(trial.requests, 1e-9)
    allowed = trial.cost <= rules.settings.most_spend * max(trial.load, trial.seen_s)
    if not allowed.any():
        return int(np.argmin(trial.cost))
    good = allowed & (share <= rules.settings.miss_share)
    if good.any():
        near = good & (trial.cost <= NEAR * trial.cost[good].min())
        return int(np.lexsort((trial.cost, missed[1], ~near))[0])
    # Of those that miss equally often, the cheapest.
    return int(np.argmin(np.where(allowed, share + 1e-6 * trial.cost / max(1e-9, trial.cost.max()), np.inf)))


def _tried(
    now_s: float,
    trial: Trial,
    rules: ScalingRules,
    wanted: Floats,
    arrived: float,
    elapsed_s: float,
    cold_start_s: float,
    can: Throughput,
) -> Trial:
    """Add the requests that came to what every rule would have done.

    A tier under a rule is two queues, as fluids: requests wait for a slot, and then for the prompts before theirs.
    """
    new_part = not trial.wanted or now_s - trial.part_s >= cold_start_s / PARTS
    most = wanted if new_part else np.maximum(trial.wanted[-1], wanted)
    wanted_parts = _with_part(trial.wanted, most, new_part)
    requested = np.maximum.reduce(wanted_parts)
    fewest = requested if new_part else np.minimum(trial.requested[-1], requested)
    requested_parts = _with_part(trial.requested, fewest, new_part)
    ready = np.minimum.reduce(requested_parts)

    there_before = np.maximum(trial.ready, 1.0)
    each = np.minimum(trial.running / there_before, rules.slots)
    service_s = np.minimum(can.longest_s, can.service_s + can.service_more_s * each)
    # Replicas that leave finish their requests.
    running = each * np.minimum(ready, there_before) * np.exp(-elapsed_s / service_s)
    queued = trial.queued + _LARGER * arrived
    begun = np.minimum(queued, rules.slots * ready - running)
    running, queued = running + begun, queued - begun
    prompts_s = np.maximum(0.0, trial.prompts_s + begun * (can.prompt_s + can.prompt_more_s * each) - ready * elapsed_s)
    slot_s = can.longest_s / rules.slots
    there = (trial.queued * slot_s + trial.prompts_s) / ready
    then = (queued * slot_s + prompts_s) / ready
    longest, shortest = np.maximum(there, then), np.minimum(there, then)
    # Of prompts that take longer than the target themselves, those that wait as long again are late.
    target_s = max(rules.settings.ttft_target_ms / 1000 - can.prompt_s, can.prompt_s)
    late = np.clip((longest - target_s) / np.maximum(longest - shortest, 1e-9), 0.0, 1.0)
    keep = exp(-elapsed_s / FORGET_S)
    return Trial(
        ready=ready,
        running=running,
        queued=queued,
        prompts_s=prompts_s,
        missed=trial.missed * keep + arrived * late,
        cost=trial.cost * keep + requested * elapsed_s,
        requests=trial.requests * keep + arrived,
        load=trial.load * keep + arrived / can.per_s,
        seen_s=trial.seen_s * keep + elapsed_s,
        part_s=now_s if new_part else trial.part_s,
        wanted=wanted_parts,
        requested=requested_parts,
    )


def _with_part(parts: tuple[Floats, ...], newest: Floats, new_part: bool) -> tuple[Floats, ...]:
    """Add a new part, or put it in the place of the newest; the oldest of more than a cold start goes."""
    before = parts if new_part else parts[:-1]
    return (*before[-PARTS:], newest)


def _needed(
    signals: Signals,
    memory: Memory,
    rules: ScalingRules,
    wanted: Floats | None,
    rule: int | None,
    per_s: float,
    cold_start_s: float,
) -> tuple[int, Reason]:
    """Return the replicas needed at this moment, and the most demanding reason."""
    if not signals.running:
        # Nothing has run, so only the backlog is known. Count it in slots: its growth is not load, but waiting.
        return ceil(signals.waiting / rules.slots), Reason.WAKE
    if wanted is None or rule is None:
        # Until requests have ended, expect none to end soon.
        need = ceil((signals.engine_running + signals.waiting) / rules.slots)
    else:
        # What runs needs its slots, also if no more comes.
        need = max(int(wanted[rule]), ceil(signals.engine_running / rules.slots))
        # A backlog that lasts for a cold start would be gone if it had been followed.
        lasts = memory.waiting_since_s is not None and signals.now_s - memory.waiting_since_s >= cold_start_s
        if FOLLOWS[rule] == _AT_ONCE or lasts:
            clearing = signals.waiting / CLEAR_BACKLOG_S
            need = max(need, ceil((_level(memory, 0) + clearing) / (USABLE * per_s) - 1e-6))
    needs = {Reason.LOAD: need}
    if signals.kv_usage > KV_TARGET:
        needs[Reason.KV_CACHE] = ceil(signals.running * signals.kv_usage / KV_TARGET)
    reason = max(needs, key=needs.__getitem__)
    return needs[reason], reason


def _with_speed(signals: Signals, memory: Memory, rules: ScalingRules, arrived: float, elapsed_s: float) -> Memory:
    """Add what the signals say of how many requests a busy replica takes."""
    began = max(0.0, arrived + memory.waiting - signals.waiting)
    since_s = signals.now_s if memory.waiting_since_s is None else memory.waiting_since_s
    memory = replace(
        memory,
        waiting=signals.waiting,
        queued=signals.queued,
        waiting_since_s=since_s if signals.waiting else None,
    )
    if not signals.running:
        return memory
    return replace(memory, speed=_with_requests(memory.speed, signals, rules.slots, began, elapsed_s))


def _with_requests(speed: Speed, signals: Signals, slots: int, began: float, elapsed_s: float) -> Speed:
    """Add the requests that began to what is known of a replica's speed."""
    gain = 1 - exp(-elapsed_s / SPEED_S)
    taken = speed.taken_per_s + gain * (began / elapsed_s / signals.running - speed.taken_per_s)
    running = speed.running_each + gain * (signals.engine_running / signals.running - speed.running_each)
    prompts = speed.prompts_each + gain * (signals.prompts - speed.prompts_each)
    weight = speed.weight + gain * (1 - speed.weight)
    speed = replace(speed, taken_per_s=taken, running_each=running, prompts_each=prompts, weight=weight)
    if weight < WHOLE or not signals.service_s or not taken or not running:
        return speed
    keep, requests = exp(-elapsed_s / FORGET_S), taken * signals.running * elapsed_s
    # Little's law: without the time in which a request waits on its replica for other prompts.
    service_s, prompt_s = running / taken, prompts / taken
    return replace(
        speed,
        requests=speed.requests * keep + requests,
        busy=speed.busy * keep + requests * max(running / slots, prompts),
        running=speed.running * keep + requests * running,
        running_squared=speed.running_squared * keep + requests * running**2,
        service_s=speed.service_s * keep + requests * service_s,
        service_squared=speed.service_squared * keep + requests * service_s**2,
        running_service=speed.running_service * keep + requests * running * service_s,
        prompt_s=speed.prompt_s * keep + requests * prompt_s,
        running_prompt=speed.running_prompt * keep + requests * running * prompt_s,
    )


def _with_levels(memory: Memory, load: float, now_s: float, elapsed_s: float) -> Memory:
    """Add the load (requests per second) of the time since the last decision to the means, and to the day."""
    keeps = [exp(-elapsed_s / mean_s) for mean_s in MEANS_S]
    levels = tuple(keep * level + (1 - keep) * load for keep, level in zip(keeps, memory.levels, strict=True))
    weights = tuple(keep * weight + (1 - keep) for keep, weight in zip(keeps, memory.weights, strict=True))
    memory = replace(memory, levels=levels, weights=weights)
    part = int(now_s / DAY_S * DAY_PARTS)
    if part == memory.day_part:
        return memory
    # A part has ended: its load is the mean of the last minutes.
    day = (*memory.day[-DAY_PARTS:], _level(memory, 2)) if part == memory.day_part + 1 else ()
    return replace(memory, day=day, day_part=part)


def _of_day(memory: Memory, now_s: float, cold_start_s: float) -> float:
    """Return the most load that there was, a day ago, from now until a replica that starts now is ready; 0 if unknown.

    The last of `day` is the part that ended when `day_part` began.
    """
    ahead = 2 + int(cold_start_s / DAY_S * DAY_PARTS)
    first = len(memory.day) - DAY_PARTS
    if first < 0:
        return 0.0
    return max(memory.day[first : first + ahead])


def _level(memory: Memory, level: int) -> float:
    """Return one of the means of the load, requests per second; 0 before the first."""
    return memory.levels[level] / max(memory.weights[level], 1 - exp(-SHORTEST_S / MEANS_S[level]))


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


def _with_peak(peaks: Peaks, now_s: float, value: float, window_s: float) -> Peaks:
    """Add a value; drop those that are older than the window, or not larger and earlier."""
    return (*(peak for peak in peaks if peak[0] > now_s - window_s and peak[1] > value), (now_s, value))


def _largest(peaks: Peaks) -> float:
    return peaks[0][1] if peaks else 0.0


class DemandPolicy:
    """The policy of one tier, which Serve's controller calls about ten times a second (`AutoscalingConfig.policy`).

    Serve itself wakes a tier without a replica, with one, before it calls the policy. It also applies the bounds.

    Args:
        tier: name of the tier, for logs and metrics.
        slots: concurrent requests per replica.
        cold_start_s: expected time from requested to running, s.
        idle_s: idle time after which the last replica goes, s.
        settings: fields of `ScalingSettings`.
        gauges: (name, help) of the gauge for each of these values: those of `PUBLISHED`, `wanted` and `ttft_target_ms`.
            Names come from `cluster/observability/series.py`, which the controller may not have.
        actions: (name, help) of the counter of changes; None: there is none.
    """

    def __init__(
        self,
        tier: str,
        slots: int,
        cold_start_s: float,
        idle_s: float,
        settings: dict[str, Any],
        gauges: dict[str, tuple[str, str]] | None = None,
        actions: tuple[str, str] | None = None,
    ) -> None:
        self._tier = tier
        self._rules = ScalingRules(slots, 0, 1, cold_start_s, idle_s, ScalingSettings.model_validate(settings))
        self._memory = Memory()
        self._gauges = {name: Gauge(*gauge, ("tier",)) for name, gauge in (gauges or {}).items()}
        self._actions = Counter(*actions, ("tier", "reason")) if actions else None

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
            "wanted": decision.target,
            "ttft_target_ms": self._rules.settings.ttft_target_ms,
        }
        before = decision.signals.target
        if decision.target != before:
            if self._actions is not None:
                self._actions.inc(1, {"tier": self._tier, "reason": decision.reason})
            values = ", ".join(f"{name} {signals[name]:.3g}" for name in PUBLISHED)
            change = f"{before} -> {decision.target} replicas"
            logger.info("tier %s: %s: %s (%s)", self._tier, change, decision.reason, values)
        for name, gauge in self._gauges.items():
            # Prometheus's base unit is the second.
            gauge.set(signals[name] / (1000 if name.endswith("_ms") else 1), {"tier": self._tier})


PUBLISHED: Final = (
    "running",
    "taken_per_s",
    "prompts",
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
"""Signals that are logged with each change."""


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
        taken_per_s=sum(newest.get("taken_per_s", ())),
        prompts=_mean(newest.get("prompts", ())),
        engine_running=sum(newest.get("engine_running", ())),
        engine_waiting=sum(newest.get("engine_waiting", ())),
        service_s=_mean([value for value in newest.get("service_s", ()) if value]),
        idle_s=min(newest.get("idle_s", ()), default=0.0),
        kv_usage=_mean(newest.get("kv_usage", ())),
        queue_wait_ms=_mean(newest.get("queue_wait_ms", ())),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
