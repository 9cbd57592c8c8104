"""What a replica tells the scaling policy (`cluster/autoscaling.py`): how long requests wait, how long they take."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from serve_app.engine.interface import EngineLoad

WAITS_S: Final = 10.0
"""Queue waits of the last so many seconds count."""
SERVICE_S: Final = 60.0
"""Requests that ended in the last so many seconds tell how long one takes."""


@dataclass(slots=True)
class Recent:
    """Values of the last so many seconds.

    Args:
        memory_s: how many.
    """

    memory_s: float = WAITS_S
    _values: deque[tuple[float, float]] = field(default_factory=deque)

    def add(self, value: float, now_s: float) -> None:
        """One more."""
        self._values.append((now_s, value))
        self._forget(now_s)

    def mean(self, now_s: float) -> float:
        """0 when there is none."""
        self._forget(now_s)
        return sum(value for _, value in self._values) / len(self._values) if self._values else 0.0

    def _forget(self, now_s: float) -> None:
        while self._values and self._values[0][0] <= now_s - self.memory_s:
            self._values.popleft()


@dataclass(slots=True)
class LoadSignals:
    """Of one replica. Times are seconds since the epoch: they cross from the ingress's node to this one.

    Args:
        ready_s: when the replica began to take requests. Who came before has waited for its start, and a start is no
            load; so such waits are not counted.
        clock: now.
    """

    ready_s: float
    clock: Callable[[], float]
    _waits: Recent = field(default_factory=Recent)
    _services: Recent = field(default_factory=lambda: Recent(SERVICE_S))
    _under_way: int = 0
    _busy_s: float = 0.0

    @property
    def under_way(self) -> int:
        """Requests at the engine."""
        return self._under_way

    @contextmanager
    def request(self, asked_s: float) -> Iterator[None]:
        """A request is at the engine.

        Args:
            asked_s: when the ingress asked for it.
        """
        began_s = self.clock()
        if asked_s >= self.ready_s:
            # Clocks of nodes differ a little.
            self._waits.add(max(0.0, began_s - asked_s), began_s)
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self._busy_s = self.clock()
            self._services.add(self._busy_s - began_s, self._busy_s)

    def stats(self, load: EngineLoad) -> dict[str, float]:
        """As `record_autoscaling_stats` of Serve wants it."""
        now_s = self.clock()
        return {
            "engine_running": load.running,
            "engine_waiting": load.waiting,
            "kv_usage": load.kv_usage,
            "queue_wait_ms": 1000 * self._waits.mean(now_s) + load.queue_wait_ms,
            "service_s": self._services.mean(now_s),
            "idle_s": 0.0 if self._under_way else now_s - max(self._busy_s, self.ready_s),
        }
