"""Where a process adds to its series: Ray's metrics pipeline, and a registry of its own for `GET /metrics`.

Ray's agents export after seconds, and know a histogram's sum only by the middles of its buckets. So `GET /metrics` is
made of exact numbers, which `cluster/observability/totals.py` collects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import prometheus_client
from ray.util import metrics

from cluster.observability.series import LABELS, Series, Writer, written_by

Tags = Mapping[str, str]
_NO_TAGS: Tags = {}


class Meter(Protocol):
    """Takes what happens. The tags are the series' labels, each with a value of the catalogue."""

    def count(self, series: Series, amount: float, tags: Tags = _NO_TAGS) -> None:
        """Add to a counter; nothing is added for 0."""
        ...

    def set(self, series: Series, value: float, tags: Tags = _NO_TAGS) -> None:
        """Set a gauge."""
        ...

    def observe(self, series: Series, value: float, tags: Tags = _NO_TAGS) -> None:
        """Add a value to a histogram."""
        ...


def bounded(label: str, value: str, otherwise: str = "other") -> str:
    """Return a label's value if the catalogue has it, else `otherwise`: no series may grow without bound."""
    return value if value in LABELS[label] else otherwise


class RayMeter:
    """Ray's pipeline: each node's agent shows the series of its processes at the node's metrics port.

    Args:
        writer: the kind of this process.
    """

    def __init__(self, writer: Writer) -> None:
        self._metrics = {series.name: _ray_metric(series) for series in written_by(writer)}
        self._gauges: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def refresh(self) -> None:
        """Set all gauges again. Ray 2.60 exports a gauge once after it was set, and shows it for two of its intervals
        (20 s), so one that stays as it is would vanish."""
        for (name, tags), value in self._gauges.items():
            self._metrics[name].set(value, dict(tags))

    def count(self, series: Series, amount: float, tags: Tags = _NO_TAGS) -> None:
        """See `Meter`."""
        if amount > 0:
            self._metrics[series.name].inc(amount, dict(tags))

    def set(self, series: Series, value: float, tags: Tags = _NO_TAGS) -> None:
        """See `Meter`."""
        self._gauges[series.name, tuple(tags.items())] = value
        self._metrics[series.name].set(value, dict(tags))

    def observe(self, series: Series, value: float, tags: Tags = _NO_TAGS) -> None:
        """See `Meter`."""
        self._metrics[series.name].observe(value, dict(tags))


def _ray_metric(series: Series) -> Any:
    if series.kind == "counter":
        return metrics.Counter(series.name, series.help, series.labels)
    if series.kind == "gauge":
        return metrics.Gauge(series.name, series.help, series.labels)
    return metrics.Histogram(series.name, series.help, list(series.buckets), series.labels)


class LocalMeter:
    """A registry of this process.

    Args:
        writer: the kind of this process.
    """

    def __init__(self, writer: Writer) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        self._metrics = {series.name: _local_metric(series, self.registry) for series in written_by(writer)}

    def count(self, series: Series, amount: float, tags: Tags = _NO_TAGS) -> None:
        """See `Meter`."""
        if amount > 0:
            self._of(series, tags).inc(amount)

    def set(self, series: Series, value: float, tags: Tags = _NO_TAGS) -> None:
        """See `Meter`."""
        self._of(series, tags).set(value)

    def observe(self, series: Series, value: float, tags: Tags = _NO_TAGS) -> None:
        """See `Meter`."""
        self._of(series, tags).observe(value)

    def _of(self, series: Series, tags: Tags) -> Any:
        metric = self._metrics[series.name]
        return metric.labels(*(tags[label] for label in series.labels)) if series.labels else metric


def _local_metric(series: Series, registry: prometheus_client.CollectorRegistry) -> Any:
    if series.kind == "counter":
        return prometheus_client.Counter(series.name, series.help, series.labels, registry=registry)
    if series.kind == "gauge":
        return prometheus_client.Gauge(series.name, series.help, series.labels, registry=registry)
    return prometheus_client.Histogram(
        series.name, series.help, series.labels, registry=registry, buckets=series.buckets
    )


class Meters:
    """Several meters as one.

    Args:
        meters: each takes everything.
    """

    def __init__(self, meters: Iterable[Meter]) -> None:
        self._meters = tuple(meters)

    def count(self, series: Series, amount: float, tags: Tags = _NO_TAGS) -> None:
        """See `Meter`."""
        for meter in self._meters:
            meter.count(series, amount, tags)

    def set(self, series: Series, value: float, tags: Tags = _NO_TAGS) -> None:
        """See `Meter`."""
        for meter in self._meters:
            meter.set(series, value, tags)

    def observe(self, series: Series, value: float, tags: Tags = _NO_TAGS) -> None:
        """See `Meter`."""
        for meter in self._meters:
            meter.observe(series, value, tags)
