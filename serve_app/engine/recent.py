"""Values of the last seconds: queue waits, service times, and requests."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

WAITS_S: Final = 10.0
"""Queue waits of the last 10 s count."""


@dataclass(slots=True)
class Recent:
    """Values of the last `memory_s` seconds."""

    memory_s: float = WAITS_S
    _values: deque[tuple[float, float]] = field(default_factory=deque)

    def add(self, value: float, now_s: float) -> None:
        """Add a value."""
        self._values.append((now_s, value))
        self._forget(now_s)

    def mean(self, now_s: float) -> float:
        """Return the mean; 0 when there is no value."""
        self._forget(now_s)
        return sum(value for _, value in self._values) / len(self._values) if self._values else 0.0

    def per_s(self, now_s: float) -> float:
        """Return how many values came, per second."""
        self._forget(now_s)
        return len(self._values) / self.memory_s

    def share(self, now_s: float) -> float:
        """Return the sum per second: of durations, s, the share of the time that they took."""
        self._forget(now_s)
        return sum(value for _, value in self._values) / self.memory_s

    def _forget(self, now_s: float) -> None:
        while self._values and self._values[0][0] <= now_s - self.memory_s:
            self._values.popleft()
