"""Learn how long a tier's cold start takes, from those that went well.

A cold start begins when a tier without a running replica requests one, and ends when one runs. It has two parts:

place   until a replica is placed and begins to load: the autoscaler adds a node, Ray starts a worker. It counts only
        while the cluster can offer a place, and for no more than the profile expects of the whole start. A longer wait
        is a shortage of nodes and says nothing about the next start.
load    from there until it runs, counted in full.

A start with a failed attempt teaches nothing, because the next one is not expected to fail. An attempt has failed if
its replica reported so, or if more replicas began to load than were ever requested at once. Chain entries that a
replica could not start are part of its load, since the next replica tries them too.

The estimate is the mean of the newest starts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from router.registry import TierName

NEWEST: Final = 3
"""Starts in the mean."""


@dataclass(slots=True)
class _Start:
    """A start under way."""

    refreshed_s: float
    """Time of the last refresh of its tier."""
    place_s: float = 0.0
    """Time that counts as waiting for a place, so far."""
    loading_since_s: float | None = None
    """None while no replica loads."""
    replicas: set[str] = field(default_factory=set)
    """Those that began to load."""
    most_requested: int = 1
    """Most replicas that were requested at once."""
    failed: bool = False


class ColdStarts:
    """The cold starts of all tiers. Times are of a monotonic clock, s."""

    def __init__(self) -> None:
        self._starts: dict[TierName, _Start] = {}
        self._warm: set[TierName] = set()
        self._newest: dict[TierName, deque[float]] = {}

    @property
    def learned_s(self) -> Mapping[TierName, float]:
        """Expected cold start by tier; tiers that have measured none are missing."""
        return {name: sum(newest) / len(newest) for name, newest in self._newest.items()}

    def refresh(
        self, name: TierName, *, running: int, starting: int, possible: bool, expected_s: float, now_s: float
    ) -> None:
        """Take the present state of a tier.

        Args:
            name: the tier.
            running: replicas that run.
            starting: replicas that are requested and do not run yet.
            possible: whether the cluster has, or can add, a place for one.
            expected_s: cold start that the profile expects, s.
            now_s: now.
        """
        start = self._starts.get(name)
        if start is not None:
            start.most_requested = max(start.most_requested, running + starting)
        if running:
            self._warm.add(name)
            if start is not None:
                self._learn(name, self._starts.pop(name), expected_s, now_s)
            return
        self._warm.discard(name)
        if not starting:
            self._starts.pop(name, None)
            return
        if start is None:
            self._starts[name] = _Start(now_s, most_requested=starting)
            return
        if start.loading_since_s is None and possible:
            start.place_s += now_s - start.refreshed_s
        start.refreshed_s = now_s

    def replica_loading(self, name: TierName, replica_id: str, now_s: float) -> None:
        """Note that a replica loads. If the tier is warm, that is no cold start."""
        if name in self._warm:
            return
        start = self._starts.setdefault(name, _Start(now_s))
        start.replicas.add(replica_id)
        if start.loading_since_s is None:
            start.place_s += now_s - start.refreshed_s
            start.loading_since_s = now_s

    def replica_failed(self, name: TierName) -> None:
        """Note that a replica failed to start."""
        if (start := self._starts.get(name)) is not None:
            start.failed = True

    def _learn(self, name: TierName, start: _Start, expected_s: float, now_s: float) -> None:
        if start.failed or len(start.replicas) > start.most_requested:
            return
        loading_since_s = start.refreshed_s if start.loading_since_s is None else start.loading_since_s
        took_s = min(start.place_s, expected_s) + now_s - loading_since_s
        self._newest.setdefault(name, deque(maxlen=NEWEST)).append(took_s)
