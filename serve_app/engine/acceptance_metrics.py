"""Acceptance per tier and category as Ray metrics, with the drift signal that an alert can use.

power_lever_draft_tokens_total{tier, category}            draft tokens verified
power_lever_accepted_draft_tokens_total{tier, category}   those that were accepted
power_lever_acceptance_rate{tier, category}               of the recent window (0-1)
power_lever_acceptance_drift{tier, category}              1: it has fallen against the reference, else 0
power_lever_ngram_fallback{tier}                        1: n-gram drafts have taken the place of the tier's own, else 0
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ray.util import metrics

from router.registry import Drafts
from serve_app.engine.interface import DraftCount
from serve_app.speculation.drift import Drift, DriftWatch, compare
from serve_app.speculation.settings import SpeculationSettings

logger = logging.getLogger("ray.serve")
_TAGS = ("tier", "category")


class Sink(Protocol):
    """Where figures go."""

    def count(self, name: str, amount: int, tags: Mapping[str, str]) -> None:
        """Add to a counter."""
        ...

    def set(self, name: str, value: float, tags: Mapping[str, str]) -> None:
        """Set a gauge."""
        ...


class RaySink:
    """Ray's metrics: on the nodes' Prometheus endpoints."""

    def __init__(self) -> None:
        self._counters = {
            name: metrics.Counter(name, description=description, tag_keys=_TAGS)
            for name, description in (
                ("power_lever_draft_tokens_total", "Draft tokens verified."),
                ("power_lever_accepted_draft_tokens_total", "Draft tokens accepted."),
            )
        }
        self._gauges = {
            name: metrics.Gauge(name, description=description, tag_keys=tags)
            for name, tags, description in (
                ("power_lever_acceptance_rate", _TAGS, "Acceptance rate of the recent draft tokens (0-1)."),
                ("power_lever_acceptance_drift", _TAGS, "1 where acceptance has fallen against the reference."),
                ("power_lever_ngram_fallback", _TAGS[:1], "1 where n-gram drafts replace the tier's own."),
            )
        }

    def count(self, name: str, amount: int, tags: Mapping[str, str]) -> None:
        """See `Sink`."""
        self._counters[name].inc(amount, tags=dict(tags))

    def set(self, name: str, value: float, tags: Mapping[str, str]) -> None:
        """See `Sink`."""
        self._gauges[name].set(value, tags=dict(tags))


@dataclass(slots=True)
class AcceptanceMetrics:
    """Publishes one replica's totals, as often as it is told them.

    Args:
        tier: its tier.
        settings: when a fall is an alarm.
        sink: where the figures go.
    """

    tier: str
    settings: SpeculationSettings
    sink: Sink
    _told: dict[str, DraftCount] = field(default_factory=dict)
    _watches: dict[str, DriftWatch] = field(default_factory=dict)
    _alerts: set[str] = field(default_factory=set)

    def publish(self, categories: Mapping[str, DraftCount]) -> None:
        """The totals since the engine started, by category."""
        for category, now in categories.items():
            before = self._told.get(category, DraftCount())
            if now != before:
                self._told[category] = DraftCount(now.drafted, now.accepted)
                self._publish(category, now.drafted - before.drafted, now.accepted - before.accepted)

    def publish_drafts(self, drafts: Drafts) -> None:
        """Who drafts now, in a step that may go over."""
        self.sink.set("power_lever_ngram_fallback", float(drafts == "ngram"), {"tier": self.tier})

    def _publish(self, category: str, drafted: int, accepted: int) -> None:
        watch = self._watches.get(category, DriftWatch()).after(drafted, accepted)
        self._watches[category] = watch
        drift = compare(watch.recent, watch.reference, self.settings.drift_min_tokens, self.settings.drift_min_fall)
        tags = {"tier": self.tier, "category": category}
        # Ray refuses to count nothing.
        for name, amount in (
            ("power_lever_draft_tokens_total", drafted),
            ("power_lever_accepted_draft_tokens_total", accepted),
        ):
            if amount:
                self.sink.count(name, amount, tags)
        self.sink.set("power_lever_acceptance_rate", drift.recent, tags)
        self.sink.set("power_lever_acceptance_drift", float(drift.alert), tags)
        self._log(category, drift)

    def _log(self, category: str, drift: Drift) -> None:
        """Once when an alarm begins, once when it ends."""
        if drift.alert == (category in self._alerts):
            return
        self._alerts ^= {category}
        said = "has fallen" if drift.alert else "is back"
        logger.warning(
            "tier %s: acceptance of %s drafts %s: %.2f, reference %.2f (z %.1f)",
            *(self.tier, category, said, drift.recent, drift.reference, drift.z),
        )
