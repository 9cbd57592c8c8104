"""The policies that the benchmark compares, each over one setting: ours, Serve's own, KEDA's threshold, and none."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from ray.serve import autoscaling_policy as serve_policy
from ray.serve.config import AutoscalingConfig

from bench.scaling.hardware import Floats, Hardware
from bench.scaling.simulation import LONGEST_COLD_START, Policy, Snapshot, Trace
from cluster.autoscaling import Memory, ScalingRules, ScalingSettings, Signals, decide

OURS: Final = "ours"
MIN_REPLICAS: Final = 1
KEDA_POLL_S: Final = 15.0
HPA_STABILIZATION_S: Final = 300.0
"""Kubernetes' default for scaling in."""


@dataclass(frozen=True, slots=True)
class Tier:
    """What a policy is made for."""

    trace: Trace
    """Only the clairvoyant may look at it."""
    hardware: Hardware
    replicas_max: int


def ours(tier: Tier, miss_share: float) -> Policy:
    """The shipped policy: `cluster.autoscaling.decide` itself."""
    rules = ScalingRules(
        tier.hardware.slots,
        MIN_REPLICAS,
        tier.replicas_max,
        tier.hardware.cold_start_s,
        600.0,
        ScalingSettings(miss_share=miss_share),
    )
    memory = Memory()
    scaled_out_s: float | None = None
    busy_s = 0.0

    def policy(snapshot: Snapshot) -> int:
        nonlocal memory, scaled_out_s, busy_s
        if snapshot.in_engines:
            busy_s = snapshot.now_s
        decision = decide(
            Signals(
                now_s=snapshot.now_s,
                target=snapshot.target,
                running=snapshot.running,
                scaled_out_s=scaled_out_s,
                queued=snapshot.queued,
                taken_per_s=snapshot.taken_per_s,
                prompts=snapshot.prompts,
                engine_running=snapshot.engine_running,
                engine_waiting=snapshot.engine_waiting,
                service_s=snapshot.service_s,
                idle_s=0.0 if snapshot.in_engines else snapshot.now_s - busy_s,
                queue_wait_ms=1000 * snapshot.queue_wait_s,
            ),
            memory,
            rules,
        )
        memory = decision.memory
        if decision.target > snapshot.target:
            scaled_out_s = snapshot.now_s
        return decision.target

    return policy


def serve_default(tier: Tier, ongoing: float) -> Policy:
    """Serve's own policy, its own code, with its default delays and window.

    Serve's default target of 2 ongoing requests would keep the tier at its maximum. Its input is fresher than in a
    cluster, where reports come every ten seconds.
    """
    config = AutoscalingConfig(
        min_replicas=MIN_REPLICAS, max_replicas=tier.replicas_max, target_ongoing_requests=ongoing
    )
    decide_as_serve = serve_policy._apply_autoscaling_config(serve_policy._core_replica_queue_length_policy)
    window: deque[int] = deque(maxlen=int(config.look_back_period_s))
    state: dict[str, Any] = {}

    def policy(snapshot: Snapshot) -> int:
        nonlocal state
        window.append(snapshot.queued + snapshot.in_engines)
        context = SimpleNamespace(
            current_num_replicas=snapshot.running,
            target_num_replicas=snapshot.target,
            total_num_requests=sum(window) / len(window),
            config=config,
            policy_state=state,
        )
        # Its delays use the wall clock.
        with patch.object(serve_policy, "time", SimpleNamespace(time=lambda: snapshot.now_s)):
            target, state = decide_as_serve(context)
        whole: int = ceil(target)
        return max(MIN_REPLICAS, min(tier.replicas_max, whole))

    return policy


def keda_queue(tier: Tier, threshold: float) -> Policy:
    """KEDA on the number of waiting requests: a threshold for each replica, polled every 15 s.

    Kubernetes' autoscaler at most doubles the replicas, or adds four, at a time. It scales in to what the last 300 s
    needed.
    """
    needs: deque[tuple[float, int]] = deque()
    polled_s = float("-inf")

    def policy(snapshot: Snapshot) -> int:
        nonlocal polled_s
        if snapshot.now_s - polled_s < KEDA_POLL_S:
            return snapshot.target
        polled_s = snapshot.now_s
        waiting = snapshot.queued + snapshot.engine_waiting
        needed = max(MIN_REPLICAS, min(tier.replicas_max, ceil(waiting / threshold)))
        needs.append((snapshot.now_s, needed))
        while needs[0][0] <= snapshot.now_s - HPA_STABILIZATION_S:
            needs.popleft()
        if needed > snapshot.target:
            return min(needed, max(2 * snapshot.target, snapshot.target + 4))
        return min(snapshot.target, max(need for _, need in needs))

    return policy


def fixed(tier: Tier, replicas: float) -> Policy:
    """The same number of replicas, always."""
    return lambda snapshot: int(replicas)


def clairvoyant(tier: Tier, utilization: float) -> Policy:
    """One that knows the future: it requests replicas a cold start ahead, and keeps what is needed again within one.

    A second needs its prompts' work, spread over two seconds, and its answers' work, spread over ten, at this share of
    the replicas' capacity.
    """
    hardware, trace = tier.hardware, tier.trace
    prefill_s = hardware.prefill_s(trace.prompt_tokens)
    needed = _per_second(trace, prefill_s, 2)
    needed += _per_second(trace, hardware.work_s(trace.prompt_tokens, trace.completion_tokens) - prefill_s, 10)
    ahead = ceil(LONGEST_COLD_START * hardware.cold_start_s) + 1
    windows = sliding_window_view(np.append(needed, np.zeros(ahead)), ahead + 1)
    targets = np.clip(np.ceil(windows.max(axis=1) / utilization), MIN_REPLICAS, tier.replicas_max).astype(int).tolist()
    return lambda snapshot: int(targets[int(snapshot.now_s)])


def _per_second(trace: Trace, work_s: Floats, spread_s: int) -> Floats:
    """Return the mean work that arrives in the last `spread_s` seconds before the end of each second."""
    seconds = np.bincount(trace.arrivals_s.astype(int), weights=work_s, minlength=int(trace.duration_s))
    return np.convolve(seconds, np.full(spread_s, 1 / spread_s))[: int(trace.duration_s)]


@dataclass(frozen=True, slots=True)
class Family:
    """A policy, and the settings that make its front."""

    make: Callable[[Tier, float], Policy]
    settings: Callable[[Hardware, int], Sequence[float]]
    """By the hardware and the most replicas."""
    rival: bool = False
    cold_start: float = 1.0
    """Share of the hardware's cold start."""
    admission: bool = False
    """Refuse a request whose first token would come too late."""


def _each(*settings: float) -> Callable[[Hardware, int], Sequence[float]]:
    return lambda hardware, replicas_max: settings


def _replicas(hardware: Hardware, replicas_max: int) -> Sequence[float]:
    """Return numbers of replicas from a quarter of the most to all."""
    return sorted({max(MIN_REPLICAS, round(replicas_max * eighths / 8)) for eighths in range(2, 9)})


FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {
        OURS: Family(ours, _each(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.6)),
        "serve_default": Family(
            serve_default,
            lambda hardware, replicas_max: [share * hardware.slots for share in (0.25, 0.375, 0.5, 0.75, 1.0)],
            rival=True,
        ),
        "keda_queue": Family(keda_queue, _each(1, 5, 20), rival=True),
        "fixed": Family(fixed, _replicas, rival=True),
        "clairvoyant": Family(clairvoyant, _each(0.6, 0.8, 1.0, 1.2, 1.4, 1.7)),
        "ours_fast_start": Family(ours, _each(0.001, 0.01), cold_start=0.1),
        "fixed_admission": Family(fixed, lambda hardware, replicas_max: [replicas_max], admission=True),
    }
)
"""By name. The settings are: the share of requests that may miss the target; target ongoing requests, from a quarter to
all of the slots; waiting requests of a replica (5 in production-stack's example); replicas; utilization. The last three
are no rivals, but show what would help: to know the future, to start ten times as fast, to refuse what would be late.
"""
