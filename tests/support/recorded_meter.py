"""A meter for tests: it keeps what it is given, and refuses what the catalogue does not allow."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.observability.meter import Tags
from cluster.observability.series import LABELS, Kind, Series


class RecordedMeter:
    """Sums of counters, values of gauges and observations of histograms, by name and then by the labels' values."""

    def __init__(self) -> None:
        self.counters: dict[str, dict[tuple[str, ...], float]] = {}
        self.gauges: dict[str, dict[tuple[str, ...], float]] = {}
        self.histograms: dict[str, dict[tuple[str, ...], list[float]]] = {}

    def count(self, series: Series, amount: float, tags: Tags | None = None) -> None:
        key, by_labels = _key(series, "counter", tags or {}), self.counters.setdefault(series.name, {})
        assert amount >= 0, "a counter does not fall"
        if amount:
            by_labels[key] = by_labels.get(key, 0) + amount

    def set(self, series: Series, value: float, tags: Tags | None = None) -> None:
        self.gauges.setdefault(series.name, {})[_key(series, "gauge", tags or {})] = value

    def observe(self, series: Series, value: float, tags: Tags | None = None) -> None:
        key = _key(series, "histogram", tags or {})
        self.histograms.setdefault(series.name, {}).setdefault(key, []).append(value)


def _key(series: Series, kind: Kind, tags: Mapping[str, str]) -> tuple[str, ...]:
    assert series.kind == kind
    assert set(tags) == set(series.labels), series.name
    unknown = {label: value for label, value in tags.items() if value not in LABELS[label]}
    assert not unknown, f"{series.name}: the catalogue does not have {unknown}"
    return tuple(tags[label] for label in series.labels)
