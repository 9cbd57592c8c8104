"""Simulation of one tier: requests, engine replicas that take time to start, and a scaling policy.

`bench/scaling/engines.py` has the requests and engines, event by event. Here the policy decides once a simulated
second, and replicas start and leave. A replica costs from the moment it is requested until it is gone. One that is
removed finishes its requests and takes no new ones.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np

from bench.scaling.engines import (
    GONE,
    LEAVING,
    SERVING,
    STARTING,
    Ints,
    Replicas,
    Requests,
    Speed,
    advance,
    compiled,
    gone,
    no_counts,
    no_replicas,
    play,
)
from bench.scaling.hardware import Floats, Hardware

PERIOD_S: Final = 1.0
WAITS_S: Final = 10.0
SERVICES_S: Final = 60.0
"""Windows of the reported mean queue wait and service time, as in `serve_app/engine`, s."""
LONGEST_COLD_START: Final = 1.2
"""Of the cold starts, as a share of the mean; the shortest is as far below."""
_COMPILED_FROM: Final = 5000
"""Compile the engines for traces with more requests."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Arrivals and lengths of requests, in the order of arrival."""

    name: str
    arrivals_s: Floats
    prompt_tokens: Floats
    completion_tokens: Floats
    duration_s: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The tier at one moment, as a policy sees it."""

    now_s: float
    target: int
    running: int
    queued: int
    """Requests that no replica has taken."""
    engine_running: int
    engine_waiting: int
    """Requests on replicas that stay; those that wait for another's prefill."""
    service_s: float
    """Mean time on a replica of the requests that ended in the last minute."""
    queue_wait_s: float
    """Mean wait for the prefill to begin, over the last ten seconds, without waits for a replica that started."""
    taken_per_s: float = 0.0
    """Requests that replicas took in the last second."""
    prompts: float = 0.0
    """Share of the last second (0-1) in which a replica had prompts to read, mean of the serving ones."""

    @property
    def in_engines(self) -> int:
        """Requests on replicas."""
        return self.engine_running + self.engine_waiting


Policy = Callable[[Snapshot], int]
"""Returns the target number of replicas, within its own bounds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a policy on a trace."""

    requests: int
    missed: int
    """Requests whose TTFT was over the target, or that got no token."""
    gpu_hours: float
    scale_actions: int
    most_replicas: int

    @property
    def miss_share(self) -> float:
        """0-1."""
        return self.missed / self.requests if self.requests else 0.0


class _Tier:
    """Replicas, and the requests that run on them."""

    def __init__(self, trace: Trace, hardware: Hardware, places: int, counted_from_s: float, latest_s: float) -> None:
        self.hardware = hardware
        self.rng = random.Random(trace.name)
        self.starting: list[tuple[float, int]] = []  # heap of (ready, place)
        size = len(trace.arrivals_s)
        self.requests = Requests(
            trace.arrivals_s,
            trace.prompt_tokens,
            trace.completion_tokens,
            hardware.prefill_s(trace.prompt_tokens),
            np.full(size, inf),
            np.full(size, inf),
        )
        self.counts = no_counts()
        self.speed = Speed(
            hardware.slots,
            hardware.batched_tokens,
            np.array(hardware.host_s),
            np.array(hardware.pass_s),
            hardware.kv_s,
            counted_from_s,
            latest_s,
        )
        self.replicas = no_replicas(1 << max(1, places - 1).bit_length(), hardware.slots)
        self.advance = compiled() if size > _COMPILED_FROM else advance

    def scale(self, target: int, now_s: float) -> None:
        """Start or remove replicas. Starting ones are removed first, then the least busy."""
        have = int(self.counts.serving[0]) + len(self.starting)
        for _ in range(target - have):
            place = self._free_place()
            self.replicas.state[place] = STARTING
            self.replicas.requested_s[place] = now_s
            share = self.rng.uniform(2 - LONGEST_COLD_START, LONGEST_COLD_START)
            self.replicas.ready_s[place] = now_s + self.hardware.cold_start_s * share
            heapq.heappush(self.starting, (float(self.replicas.ready_s[place]), place))
        surplus = have - target
        while surplus > 0 and self.starting:
            last = max(self.starting)
            self.starting.remove(last)
            heapq.heapify(self.starting)
            gone(self.replicas, self.counts, self.speed, last[1], now_s)
            surplus -= 1
        if surplus > 0:
            serving = self.serving()
            order = serving[np.argsort(self.replicas.busy[serving], kind="stable")]
            for place in order[:surplus].tolist():
                busy = self.replicas.busy[place]
                self.counts.free[0] -= self.hardware.slots - busy
                if busy:
                    self.replicas.state[place] = LEAVING
                else:
                    gone(self.replicas, self.counts, self.speed, place, now_s)
            self.replicas.serving[: len(order) - surplus] = order[surplus:]
            self.counts.serving[0] -= surplus

    def become_ready(self, now_s: float) -> None:
        """Let the replicas that have started take requests."""
        while self.starting and self.starting[0][0] <= now_s:
            _, place = heapq.heappop(self.starting)
            self.replicas.state[place] = SERVING
            self.replicas.serving[self.counts.serving[0]] = place
            self.counts.serving[0] += 1
            self.counts.free[0] += self.hardware.slots

    def serving(self) -> Ints:
        """Return the places of the replicas that take requests."""
        return self.replicas.serving[: self.counts.serving[0]]

    def waiting(self) -> int:
        """Return the requests that wait for another's prefill on the replicas that stay."""
        return int(np.maximum(self.replicas.prompts[self.serving()] - 1, 0).sum())

    def close(self, now_s: float) -> float:
        """Return the cost of all replicas until now, replica-seconds."""
        for place in np.flatnonzero(self.replicas.state):
            gone(self.replicas, self.counts, self.speed, int(place), now_s)
        return self.counts.gone_s.item()

    def _free_place(self) -> int:
        free = np.flatnonzero(self.replicas.state == GONE)
        if not len(free):
            self.replicas = _grown(self.replicas, self.hardware.slots)
            return self._free_place()
        return int(free[0])


def simulate(
    trace: Trace,
    hardware: Hardware,
    policy: Policy,
    *,
    ttft_target_s: float,
    initial: int,
    counted_from_s: float = 0.0,
    admission: bool = False,
) -> Outcome:
    """Run a trace under a policy.

    Args:
        trace: traffic.
        hardware: of every replica.
        policy: decides once a simulated second.
        ttft_target_s: a request without a token after this time is missed. Those that arrive so late that the trace
            ends before it do not count.
        initial: replicas that run at the beginning.
        counted_from_s: requests and costs before this time do not count.
        admission: refuse requests whose first token would come too late, so that others are in time.
    """
    tier = _Tier(trace, hardware, 2 * initial, counted_from_s, ttft_target_s if admission else inf)
    tier.scale(initial, -2 * hardware.cold_start_s)
    tier.become_ready(0.0)
    tier.replicas.requested_s[:] = 0.0
    counts = tier.counts
    waits: deque[tuple[int, float]] = deque(maxlen=int(WAITS_S / PERIOD_S))
    services: deque[tuple[int, float]] = deque(maxlen=int(SERVICES_S / PERIOD_S))
    actions = taken = 0
    read_s = 0.0
    target = most = initial
    for second in range(int(trace.duration_s / PERIOD_S)):
        now_s = second * PERIOD_S
        tier.become_ready(now_s)
        waiting = tier.waiting()
        snapshot = Snapshot(
            now_s=now_s,
            target=target,
            running=int(counts.serving[0]),
            queued=int(counts.arrived[0] - counts.begun[0]),
            engine_running=int(counts.serving[0] * hardware.slots - counts.free[0]) - waiting,
            engine_waiting=waiting,
            service_s=_mean(services),
            queue_wait_s=_mean(waits),
            taken_per_s=(int(counts.begun[0]) - taken) / PERIOD_S,
            prompts=min(1.0, (float(counts.prompts_s[0]) - read_s) / PERIOD_S / max(1, int(counts.serving[0]))),
        )
        taken, read_s = int(counts.begun[0]), float(counts.prompts_s[0])
        new_target = policy(snapshot)
        if new_target != target:
            target = new_target
            actions += 1
            most = max(most, target)
            tier.scale(target, now_s)
        tier.advance(tier.requests, tier.replicas, counts, tier.speed, now_s, now_s + PERIOD_S)
        waits.append((int(counts.waits[0]), float(counts.waited_s[0])))
        services.append((int(counts.ended[0]), float(counts.served_s[0])))
        counts.waits[0] = counts.ended[0] = 0
        counts.waited_s[0] = counts.served_s[0] = 0.0
    counted = (trace.arrivals_s >= counted_from_s) & (trace.arrivals_s <= trace.duration_s - ttft_target_s)
    late = tier.requests.first_s - trace.arrivals_s > ttft_target_s
    hours = tier.close(trace.duration_s) * hardware.gpus / 3600
    return Outcome(int(counted.sum()), int((counted & late).sum()), hours, actions, most)


def _mean(sums: deque[tuple[int, float]]) -> float:
    """Return the mean of values that are given as a number of them and their sum for each second; 0 without any."""
    count = sum(number for number, _ in sums)
    return sum(total for _, total in sums) / count if count else 0.0


def _grown(replicas: Replicas, slots: int) -> Replicas:
    """Return the same replicas with twice as many places."""
    size = len(replicas.state)
    grown = no_replicas(2 * size, slots)
    for name, old, new in zip(Replicas._fields, replicas, grown, strict=True):
        if name != "earliest":
            new[:size] = old
    for node in range(2 * size - 1, 0, -1):
        play(grown, node)
    return grown
