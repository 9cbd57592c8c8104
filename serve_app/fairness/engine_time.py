"""How much of an engine's time each key used lately, and who used more than its fair share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import exp
from typing import Final

FORGET_S: Final = 30.0
"""Time constant with which used time is forgotten, s: longer than most answers, so that a key that sends one long
answer after the other is not a newcomer with each; short enough that nobody pays for an hour ago."""
_NOTHING_S: Final = 1e-6


class EngineTime:
    """The engine seconds of each key, forgotten exponentially."""

    def __init__(self) -> None:
        self._used_s: dict[str, float] = {}
        self._now_s = 0.0

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
        """Return which keys used more than their fair share: the time of all who are present, divided equally.

        Args:
            present: keys with a request in the engine. Nobody else's share counts: an absent key wants nothing.
        """
        used = {key: self._used_s.get(key, 0.0) for key in present}
        fair_s = sum(used.values()) / len(used) if used else 0.0
        # Equal users are never over it, whatever the last bit of a sum says.
        return frozenset(key for key, seconds in used.items() if seconds > fair_s * (1 + 1e-9))
