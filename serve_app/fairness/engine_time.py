"""How much of an engine's time each key used lately, and who used more than its fair share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import exp
from typing import Final

FORGET_S: Final = 30.0
"""Time constant with which used time is forgotten, s: longer than most answers, so that a key that sends one long
answer after the other is not a newcomer with each; short enough that nobody pays for an hour ago."""
CLEARLY: Final = 1.5
"""A key is over its share when it used so many times as much, and until it used no more than its share: of equal keys
each is above the mean by a hair now and then, and who is over must not change with every step."""
_NOTHING_S: Final = 1e-6


class EngineTime:
    """The engine seconds of each key, forgotten exponentially."""

    def __init__(self) -> None:
        self._used_s: dict[str, float] = {}
        self._now_s = 0.0
        self._over: frozenset[str] = frozenset()

    def use(self, seconds: Mapping[str, float], now_s: float) -> None:
        """Add time that was used.

        Args:
            seconds: by key.
            now_s: monotonic clock, s.
        """
        keep = exp(-max(0.0, now_s - self._now_s) / FORGET_S)
        self._now_s = now_s
        kept = {key: used * keep for key, used in self._used_s.items() if used * keep > _NOTHING_S}
        self._used_s = {key: kept.get(key, 0.0) + seconds.get(key, 0.0) for key in kept.keys() | seconds.keys()}

    def over_share(self, present: Collection[str]) -> frozenset[str]:
        """Return which keys used clearly more than their fair share: the time of all who are present, divided equally.

        Args:
            present: keys with a request in the engine now. Nobody else's share counts: an absent key wants nothing.
        """
        used = {key: self._used_s.get(key, 0.0) for key in present}
        fair_s = sum(used.values()) / len(used) if used else 0.0
        limits_s = {key: fair_s * (1 if key in self._over else CLEARLY) for key in used}
        self._over = frozenset(key for key, seconds in used.items() if seconds > limits_s[key] + _NOTHING_S)
        return self._over
