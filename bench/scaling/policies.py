"""The policies of the autoscaling benchmark: ours, Serve's own, and KEDA's threshold on waiting requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from math import ceil
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from ray.serve import autoscaling_policy as serve_policy
from ray.serve.config import AutoscalingConfig

from bench.scaling.simulation import Hardware, Look, Policy
from cluster.autoscaling import Memory, ScalingRules, ScalingSettings, Signals, decide

MIN_REPLICAS: Final = 1
KEDA_THRESHOLD: Final = 5
KEDA_POLL_S: Final = 15.0
HPA_STABILIZATION_S: Final = 300.0
"""Kubernetes' default for scaling in."""
KEDA_COOLDOWN_S: Final = 360.0
"""Only before the last replica goes, which here stays."""


def queue_wait(hardware: Hardware, replicas_max: int) -> Policy:
    """The shipped policy: `cluster.autoscaling.decide` itself."""
    rules = ScalingRules(hardware.slots, MIN_REPLICAS, replicas_max, hardware.cold_start_s, 600.0, ScalingSettings())
    memory = Memory()
    scaled_out_s: float | None = None
    busy_s = 0.0

    def policy(look: Look) -> int:
        nonlocal memory, scaled_out_s, busy_s
        if look.in_engines:
            busy_s = look.now_s
        decision = decide(
            Signals(
                now_s=look.now_s,
                wanted=look.wanted,
                running=look.running,
                scaled_out_s=scaled_out_s,
                queued=look.queued,
                engine_running=look.in_engines,
                service_s=look.service_s,
                idle_s=0.0 if look.in_engines else look.now_s - busy_s,
                queue_wait_ms=1000 * look.queue_wait_s,
            ),
            memory,
            rules,
        )
        memory = decision.memory
        if decision.wanted > look.wanted:
            scaled_out_s = look.now_s
        return decision.wanted

    return policy


def serve_default(hardware: Hardware, replicas_max: int) -> Policy:
    """Serve's own policy, its own code, with its default delays and window.

    Its target of ongoing requests is half a replica's slots: its default of 2 would be a sixteenth of them, and keep
    the tier at its maximum. What it sees is better than in a cluster, where reports come every ten seconds.
    """
    config = AutoscalingConfig(
        min_replicas=MIN_REPLICAS, max_replicas=replicas_max, target_ongoing_requests=hardware.slots / 2
    )
    decide_as_serve = serve_policy._apply_autoscaling_config(serve_policy._core_replica_queue_length_policy)
    window: deque[int] = deque(maxlen=int(config.look_back_period_s))
    state: dict[str, Any] = {}

    def policy(look: Look) -> int:
        nonlocal state
        window.append(look.queued + look.in_engines)
        context = SimpleNamespace(
            current_num_replicas=look.running,
            target_num_replicas=look.wanted,
            total_num_requests=sum(window) / len(window),
            config=config,
            policy_state=state,
        )
        # Its delays go by the wall clock.
        with patch.object(serve_policy, "time", SimpleNamespace(time=lambda: look.now_s)):
            wanted, state = decide_as_serve(context)
        whole: int = ceil(wanted)
        return max(MIN_REPLICAS, min(replicas_max, whole))

    return policy


def keda_queue(hardware: Hardware, replicas_max: int) -> Policy:
    """KEDA on the number of waiting requests: threshold 5 a replica, polled every 15 s, and Kubernetes' own rules.

    Those are the autoscaler's: in one period at most twice as many or four more; in, what the last 300 s needed.
    """
    needs: deque[tuple[float, int]] = deque()
    polled_s = float("-inf")

    def policy(look: Look) -> int:
        nonlocal polled_s
        if look.now_s - polled_s < KEDA_POLL_S:
            return look.wanted
        polled_s = look.now_s
        needed = max(MIN_REPLICAS, min(replicas_max, ceil(look.queued / KEDA_THRESHOLD)))
        needs.append((look.now_s, needed))
        while needs[0][0] <= look.now_s - HPA_STABILIZATION_S:
            needs.popleft()
        if needed > look.wanted:
            return min(needed, max(2 * look.wanted, look.wanted + 4))
        return min(look.wanted, max(need for _, need in needs))

    return policy


POLICIES: Final[Mapping[str, Callable[[Hardware, int], Policy]]] = MappingProxyType(
    {"queue_wait": queue_wait, "serve_default": serve_default, "keda_queue": keda_queue}
)
