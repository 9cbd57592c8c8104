"""Discrete-event simulation of one tier: requests, engine replicas that take time to start, and a scaling policy.

Every arrival, start and end of a request is an event. The policy decides once a simulated second. Requests wait in one
queue, first come, first served (Serve's handles), and go to the less busy of two random replicas (Serve's power of two
choices). A request holds one slot of its replica for its prefill and its tokens, whose rate falls with the size of the
batch. A replica costs from the moment it is requested until it is gone. One that is removed finishes its requests and
takes no new ones.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

PERIOD_S: Final = 1.0
WAIT_MEMORY_S: Final = 5.0
"""Window of the reported mean queue wait, s."""
SERVICE_GAIN: Final = 0.1
"""Weight of the requests that ended in a second in the smoothed service time."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """Speed of a replica. Times in seconds."""

    slots: int
    cold_start_s: float
    prefill_s: float = 0.2
    token_s: float = 0.02
    token_s_per_running: float = 0.0005
    """Added to `token_s` for every request in the batch."""

    def service_s(self, tokens: float, running: int) -> float:
        """Return how long a request holds its slot if it joins `running` others."""
        return self.prefill_s + tokens * (self.token_s + self.token_s_per_running * running)


@dataclass(frozen=True, slots=True)
class Trace:
    """Arrivals and lengths of requests."""

    name: str
    arrivals_s: Sequence[float]
    tokens: Sequence[float]
    duration_s: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The tier at one moment, as a policy sees it."""

    now_s: float
    target: int
    running: int
    queued: int
    in_engines: int
    service_s: float
    """Mean time that recently ended requests held their slots."""
    queue_wait_s: float
    """Mean of recently started requests, without those that arrived before their replica was ready."""


Policy = Callable[[Snapshot], int]
"""Returns the target number of replicas, within its own bounds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a policy on a trace."""

    requests: int
    missed: int
    """Requests whose TTFT was over the target, or that never started."""
    gpu_hours: float
    scale_actions: int
    most_replicas: int

    @property
    def miss_share(self) -> float:
        """0-1."""
        return self.missed / self.requests


class _Tier:
    """Replicas, and the requests that run on them."""

    def __init__(self, hardware: Hardware, rng: random.Random) -> None:
        self.hardware = hardware
        self.rng = rng
        self.busy: list[int] = []  # by replica: requests that it runs
        self.began_s: list[float] = []  # by replica: when it was requested
        self.ready_s: list[float] = []
        self.leaving: set[int] = set()
        self.serving: list[int] = []
        self.starting: list[tuple[float, int]] = []  # heap of (ready, replica)
        self.ends: list[tuple[float, int, float]] = []  # heap of (end of a request, its replica, time it took)
        self.free = 0  # slots
        self.in_engines = 0  # requests that run on replicas which stay
        self.gpu_s = 0.0

    def scale(self, target: int, now_s: float) -> None:
        """Start or remove replicas. Starting ones are removed first, then the least busy."""
        have = len(self.serving) + len(self.starting)
        for _ in range(target - have):
            replica = len(self.busy)
            self.busy.append(0)
            self.began_s.append(now_s)
            self.ready_s.append(now_s + self.hardware.cold_start_s * self.rng.uniform(0.8, 1.2))
            heapq.heappush(self.starting, (self.ready_s[replica], replica))
        surplus = have - target
        while surplus > 0 and self.starting:
            last = max(self.starting)
            self.starting.remove(last)
            heapq.heapify(self.starting)
            self.gpu_s += now_s - self.began_s[last[1]]
            surplus -= 1
        if surplus > 0:
            self.serving.sort(key=self.busy.__getitem__)
            for replica in self.serving[:surplus]:
                self.free -= self.hardware.slots - self.busy[replica]
                self.in_engines -= self.busy[replica]
                if self.busy[replica]:
                    self.leaving.add(replica)
                else:
                    self.gpu_s += now_s - self.began_s[replica]
            del self.serving[:surplus]

    def become_ready(self, now_s: float) -> None:
        """Let the replicas that have started take requests."""
        while self.starting and self.starting[0][0] <= now_s:
            _, replica = heapq.heappop(self.starting)
            self.serving.append(replica)
            self.free += self.hardware.slots

    def choose(self) -> int:
        """Return a replica with a free slot: the less busy of two random ones if possible."""
        pick, count = self.rng.random, len(self.serving)
        for _ in range(4):
            one, other = self.serving[int(pick() * count)], self.serving[int(pick() * count)]
            best = one if self.busy[one] <= self.busy[other] else other
            if self.busy[best] < self.hardware.slots:
                return best
        return min(self.serving, key=self.busy.__getitem__)

    def begin(self, replica: int, tokens: float, now_s: float) -> None:
        """Start a request on a replica."""
        service_s = self.hardware.service_s(tokens, self.busy[replica])
        heapq.heappush(self.ends, (now_s + service_s, replica, service_s))
        self.busy[replica] += 1
        self.free -= 1
        self.in_engines += 1

    def end(self) -> int | None:
        """End the next request; return its replica if that may take another."""
        now_s, replica, _ = heapq.heappop(self.ends)
        self.busy[replica] -= 1
        if replica not in self.leaving:
            self.free += 1
            self.in_engines -= 1
            return replica
        if not self.busy[replica]:
            self.leaving.discard(replica)
            self.gpu_s += now_s - self.began_s[replica]
        return None

    def close(self, now_s: float) -> None:
        """End the trace: count the cost of all replicas until now."""
        present = [*self.serving, *self.leaving, *(replica for _, replica in self.starting)]
        self.gpu_s += sum(now_s - self.began_s[replica] for replica in present)


def simulate(trace: Trace, hardware: Hardware, policy: Policy, *, ttft_target_s: float, initial: int) -> Outcome:
    """Run a trace under a policy.

    Args:
        trace: traffic.
        hardware: of every replica.
        policy: decides once a simulated second.
        ttft_target_s: a request without a token after this time is missed.
        initial: replicas that run at the beginning.
    """
    tier = _Tier(hardware, random.Random(trace.name))
    tier.scale(initial, -2 * hardware.cold_start_s)
    tier.become_ready(0.0)
    tier.began_s = [0.0] * initial
    queue: deque[int] = deque()
    waits: deque[tuple[float, float]] = deque()
    missed = actions = ended = index = 0
    service_s = took_s = 0.0
    target = most = initial
    arrivals, tokens = trace.arrivals_s, trace.tokens

    def begin(request: int, replica: int, now_s: float) -> None:
        nonlocal missed
        waited_s = now_s - arrivals[request]
        if waited_s + hardware.prefill_s > ttft_target_s:
            missed += 1
        if tier.ready_s[replica] <= arrivals[request]:
            waits.append((now_s, waited_s))
        tier.begin(replica, tokens[request], now_s)

    for second in range(int(trace.duration_s / PERIOD_S)):
        now_s = second * PERIOD_S
        tier.become_ready(now_s)
        while queue and tier.free > 0:
            begin(queue.popleft(), tier.choose(), now_s)
        if ended:
            service_s = service_s + SERVICE_GAIN * (took_s / ended - service_s) if service_s else took_s / ended
        ended, took_s = 0, 0.0
        while waits and waits[0][0] <= now_s - WAIT_MEMORY_S:
            waits.popleft()
        wait_s = sum(waited for _, waited in waits) / len(waits) if waits else 0.0
        snapshot = Snapshot(now_s, target, len(tier.serving), len(queue), tier.in_engines, service_s, wait_s)
        new_target = policy(snapshot)
        if new_target != target:
            target = new_target
            actions += 1
            most = max(most, target)
            tier.scale(target, now_s)
        until_s = now_s + PERIOD_S
        while True:
            arrival_s = arrivals[index] if index < len(arrivals) else until_s
            if tier.ends and tier.ends[0][0] <= min(arrival_s, until_s):
                end_s, _, request_s = tier.ends[0]
                ended += 1
                took_s += request_s
                replica = tier.end()
                if replica is not None and queue:
                    begin(queue.popleft(), replica, end_s)
            elif arrival_s < until_s:
                if tier.free > 0:
                    begin(index, tier.choose(), arrival_s)
                else:
                    queue.append(index)
                index += 1
            else:
                break
    tier.close(trace.duration_s)
    return Outcome(index, missed + len(queue), tier.gpu_s / 3600, actions, most)
