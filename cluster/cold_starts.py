"""How long a tier's cold start takes: learned from those that went as one should.

A cold start begins when a tier without a running replica wants one, and ends when one runs. It has two parts:

place   until a replica is placed and begins to load: a node that the autoscaler brings, a worker that Ray starts. It
        counts only while the cluster can have the place, and for no more than the profile expects of the whole start:
        what takes longer is a shortage of nodes, and says nothing of the next start.
load    from there until it runs: counted as it is.

A start in which an attempt failed teaches nothing: the next one is not expected to fail. An attempt has failed when its
replica said so, or when more replicas began to load than were ever wanted at once. Attempts within a replica, the steps
that it could not start, are part of its load, since the next replica tries them too.

The estimate is the mean of the newest starts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from router.registry import TierName

NEWEST: Final = 3
"""So many starts are averaged."""


@dataclass(slots=True)
class _Start:
    """One that is under way."""

    looked_s: float
    """When its tier was last looked at."""
    place_s: float = 0.0
    """Time that counts as waiting for a place, so far."""
    loading_since_s: float | None = None
    """None: no replica loads yet."""
    replicas: set[str] = field(default_factory=set)
    """Those that began to load."""
    most: int = 1
    """Replicas that were wanted at once."""
    failed: bool = False


class ColdStarts:
    """Of all tiers. Times are of a monotonic clock, s."""

    def __init__(self) -> None:
        self._starts: dict[TierName, _Start] = {}
        self._warm: set[TierName] = set()
        self._newest: dict[TierName, deque[float]] = {}

    @property
    def learned_s(self) -> Mapping[TierName, float]:
        """By tier: the expected cold start; a tier that is missing had none yet."""
        return {name: sum(newest) / len(newest) for name, newest in self._newest.items()}

    def look(
        self, name: TierName, *, running: int, starting: int, possible: bool, expected_s: float, now_s: float
    ) -> None:
        """What a tier is doing now.

        Args:
            name: the tier.
            running: its replicas that run.
            starting: those that are wanted and do not run yet.
            possible: whether the cluster has, or can add, a place for one.
            expected_s: cold start that the profile expects, s.
            now_s: now.
        """
        start = self._starts.get(name)
        if start is not None:
            start.most = max(start.most, running + starting)
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
            self._starts[name] = _Start(now_s, most=starting)
            return
        if start.loading_since_s is None and possible:
            start.place_s += now_s - start.looked_s
        start.looked_s = now_s

    def loads(self, name: TierName, replica_id: str, now_s: float) -> None:
        """A replica says that it loads; one more of a tier that runs is no cold start."""
        if name in self._warm:
            return
        start = self._starts.setdefault(name, _Start(now_s))
        start.replicas.add(replica_id)
        if start.loading_since_s is None:
            start.place_s += now_s - start.looked_s
            start.loading_since_s = now_s

    def failed(self, name: TierName) -> None:
        """A replica says that it cannot start."""
        if (start := self._starts.get(name)) is not None:
            start.failed = True

    def _learn(self, name: TierName, start: _Start, expected_s: float, now_s: float) -> None:
        if start.failed or len(start.replicas) > start.most:
            return
        loading_since_s = start.looked_s if start.loading_since_s is None else start.loading_since_s
        took_s = min(start.place_s, expected_s) + now_s - loading_since_s
        self._newest.setdefault(name, deque(maxlen=NEWEST)).append(took_s)
