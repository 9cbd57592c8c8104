"""The policies that the autoscaling benchmark compares: ours, Serve's own, and KEDA's threshold on waiting requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from math import ceil
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from ray.serve import autoscaling_policy as serve_policy
from ray.serve.config import AutoscalingConfig

from bench.scaling.hardware import Hardware
from bench.scaling.simulation import Policy, Snapshot
from cluster.autoscaling import Memory, ScalingRules, ScalingSettings, Signals, decide

MIN_REPLICAS: Final = 1
KEDA_THRESHOLD: Final = 5
KEDA_POLL_S: Final = 15.0
HPA_STABILIZATION_S: Final = 300.0
"""Kubernetes' default for scaling in."""


def queue_wait(hardware: Hardware, replicas_max: int) -> Policy:
    """The shipped policy: `cluster.autoscaling.decide` itself."""
    rules = ScalingRules(hardware.slots, MIN_REPLICAS, replicas_max, hardware.cold_start_s, 600.0, ScalingSettings())
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


def serve_default(hardware: Hardware, replicas_max: int) -> Policy:
    """Serve's own policy, its own code, with its default delays and window.

    Its target of ongoing requests is half a replica's slots. The default of 2, a sixteenth of them, would keep the tier
    at its maximum. Its input is fresher than in a cluster, where reports come every ten seconds.
    """
    config = AutoscalingConfig(
        min_replicas=MIN_REPLICAS, max_replicas=replicas_max, target_ongoing_requests=hardware.slots / 2
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
        return max(MIN_REPLICAS, min(replicas_max, whole))

    return policy


def keda_queue(hardware: Hardware, replicas_max: int) -> Policy:
    """KEDA on the number of waiting requests: a threshold of 5 per replica, polled every 15 s.

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
        needed = max(MIN_REPLICAS, min(replicas_max, ceil(waiting / KEDA_THRESHOLD)))
        needs.append((snapshot.now_s, needed))
        while needs[0][0] <= snapshot.now_s - HPA_STABILIZATION_S:
            needs.popleft()
        if needed > snapshot.target:
            return min(needed, max(2 * snapshot.target, snapshot.target + 4))
        return min(snapshot.target, max(need for _, need in needs))

    return policy


POLICIES: Final[Mapping[str, Callable[[Hardware, int], Policy]]] = MappingProxyType(
    {"queue_wait": queue_wait, "serve_default": serve_default, "keda_queue": keda_queue}
)
