"""What an engine replica reports beside its answers: load signals for the scaling policy, and metrics.

The load signals go to `cluster/autoscaling.py`: how many requests come, how long they wait, and how
long they take. The metrics are in `cluster/observability/series.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from cluster.observability import series
from cluster.observability.meter import Meter, bounded
from router.registry import DraftsChoice
from serve_app.engine.drift import Drift, DriftWatch, compare
from serve_app.engine.interface import DraftCount, EngineLoad
from serve_app.engine.recent import Recent
from serve_app.speculation.settings import SpeculationSettings

logger = logging.getLogger("ray.serve")

TAKEN_S: Final = 1.0
"""Requests of the last second show how many come: the policy decides once a second, and counts each of them once."""
SERVICE_S: Final = 60.0
"""Requests that ended in the last 60 s show how long one takes."""


@dataclass(slots=True)
class LoadSignals:
    """Load signals of one replica. Times are seconds since the epoch: they cross from the ingress's node to this one.

    Args:
        ready_s: when the replica began to take requests. Earlier requests have waited for its start, and a start is no
            load, so their waits are not counted.
        clock: now.
    """

    ready_s: float
    clock: Callable[[], float]
    _waits: Recent = field(default_factory=Recent)
    _services: Recent = field(default_factory=lambda: Recent(SERVICE_S))
    _taken: Recent = field(default_factory=lambda: Recent(TAKEN_S))
    _under_way: int = 0
    _busy_s: float = 0.0

    @property
    def under_way(self) -> int:
        """Requests at the engine."""
        return self._under_way

    @contextmanager
    def request(self, called_s: float) -> Iterator[None]:
        """Count a request as being at the engine.

        Args:
            called_s: when the ingress made the call, seconds since the epoch.
        """
        began_s = self.clock()
        if called_s >= self.ready_s:
            # Clocks of nodes differ a little.
            self._waits.add(max(0.0, began_s - called_s), began_s)
        self._taken.add(1.0, began_s)
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self._busy_s = self.clock()
            self._services.add(self._busy_s - began_s, self._busy_s)

    def stats(self, load: EngineLoad) -> dict[str, float]:
        """Return the signals for Serve's `record_autoscaling_stats`."""
        now_s = self.clock()
        return {
            "taken_per_s": self._taken.per_s(now_s),
            "engine_running": load.running,
            "engine_waiting": load.waiting,
            "prompts": load.prompts,
            "kv_usage": load.kv_usage,
            "queue_wait_ms": 1000 * self._waits.mean(now_s) + load.queue_wait_ms,
            "service_s": self._services.mean(now_s),
            "idle_s": 0.0 if self._under_way else now_s - max(self._busy_s, self.ready_s),
        }


@dataclass(slots=True)
class BusyMetrics:
    """Publishes one replica's busy and idle time, and its GPUs' energy in them.

    Args:
        tier: its tier.
        watts: modelled, by state; empty: it has no GPU.
        meter: where the metrics go.
    """

    tier: str
    watts: Mapping[str, float]
    meter: Meter
    _published: dict[str, float] = field(default_factory=dict)
    _drawn: dict[str, float] = field(default_factory=dict)

    def publish(self, busy_s: float, up_s: float, joules: Mapping[str, float] | None) -> None:
        """Publish what is new.

        Args:
            busy_s: busy time since the engine was ready, s.
            up_s: time since then, s.
            joules: measured energy since then by state, J; None: nothing can be measured now.
        """
        for state, seconds in (("busy", busy_s), ("idle", up_s - busy_s)):
            # A step that is long under way counts as idle until it ends.
            more_s = seconds - self._published.get(state, 0.0)
            if more_s > 0:
                self._published[state] = seconds
                self.meter.count(series.ENGINE_SECONDS, more_s, {"tier": self.tier, "state": state})
                if joules is None and state in self.watts:
                    self._count(state, more_s * self.watts[state], "modelled")
        for state, measured_j in (joules or {}).items():
            more_j = measured_j - self._drawn.get(state, 0.0)
            if more_j > 0:
                self._drawn[state] = measured_j
                self._count(state, more_j, "measured")

    def _count(self, state: str, joules: float, source: str) -> None:
        if joules > 0:
            self.meter.count(series.GPU_ENERGY, joules, {"tier": self.tier, "state": state, "source": source})


@dataclass(slots=True)
class AcceptanceMetrics:
    """Publishes one replica's draft tokens, and the drift alarm.

    Args:
        tier: its tier.
        settings: when a fall is an alarm.
        meter: where the metrics go.
    """

    tier: str
    settings: SpeculationSettings
    meter: Meter
    _published: dict[str, DraftCount] = field(default_factory=dict)
    _watches: dict[str, DriftWatch] = field(default_factory=dict)
    _alerts: set[str] = field(default_factory=set)

    def publish(self, categories: Mapping[str, DraftCount]) -> None:
        """Publish the totals since the engine started, by category."""
        for category, now in categories.items():
            before = self._published.get(category, DraftCount())
            if now != before:
                self._published[category] = DraftCount(now.drafted, now.accepted)
                self._publish(category, now.drafted - before.drafted, now.accepted - before.accepted)

    def publish_drafts(self, drafts: DraftsChoice) -> None:
        """Publish who drafts now for requests that do not choose, where the chain entry drafts in both ways."""
        self.meter.set(series.NGRAM_FALLBACK, float(drafts == "ngram"), {"tier": self.tier})

    def _publish(self, category: str, drafted: int, accepted: int) -> None:
        watch = self._watches.get(category, DriftWatch()).after(drafted, accepted)
        self._watches[category] = watch
        drift = compare(watch.recent, watch.reference, self.settings.drift_min_tokens, self.settings.drift_min_fall)
        tags = {"tier": self.tier, "category": bounded("category", category, series.NONE)}
        self.meter.count(series.DRAFT_TOKENS, drafted, tags)
        self.meter.count(series.ACCEPTED_DRAFT_TOKENS, accepted, tags)
        self.meter.set(series.ACCEPTANCE_RATE, drift.recent, tags)
        self.meter.set(series.ACCEPTANCE_DRIFT, float(drift.alert), tags)
        self._log(category, drift)

    def _log(self, category: str, drift: Drift) -> None:
        """Log once when an alarm begins and once when it ends."""
        if drift.alert == (category in self._alerts):
            return
        self._alerts ^= {category}
        change = "has fallen" if drift.alert else "has recovered"
        logger.warning(
            "tier %s: acceptance of %s drafts %s: %.2f, reference %.2f (z %.1f)",
            *(self.tier, category, change, drift.recent, drift.reference, drift.z),
        )
