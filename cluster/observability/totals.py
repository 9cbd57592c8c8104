"""The totals of all replicas: what each adds, what `GET /metrics` shows.

A replica reports what it added since its last report, so a total stays when the replica goes. A report has a number, so
that one which is sent again counts once. After a restart of the process that keeps the totals all counters begin at 0
together, which Prometheus takes for what it is. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Final, NamedTuple

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric

from cluster.observability.series import CATALOGUE, Across

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Of `exposition`; every Prometheus reads it."""
VLLMS_METRICS: Final = "vllm:"
"""How the names of vLLM's metrics begin."""
_GROWING: Final = frozenset(("counter", "histogram", "summary"))
_CREATED: Final = "_created"
"""Suffix of a sample that `prometheus_client` adds to each counter: when it began, which says nothing of a total."""
_MERGE: Final[dict[Across, Callable[[Iterable[float]], float]]] = {"sum": sum, "max": max, "mean": fmean}
_ACROSS: Final = {series.name: series.across for series in CATALOGUE}

Labels = tuple[tuple[str, str], ...]


class Sample(NamedTuple):
    """One line of the exposition without its value."""

    name: str
    labels: Labels


class Family(NamedTuple):
    """A metric with all its lines."""

    name: str
    """Without `_total`."""
    kind: str
    help: str


Snapshot = dict[Family, dict[Sample, float]]


@dataclass(frozen=True, slots=True)
class MetricsReport:
    """What one replica reports."""

    replica_id: str
    number: int
    """1 for its first; a report that is sent again has the same number and the same `added`."""
    asked: int
    """The newest question that it knew of when it looked (`cluster/observability/desk.py`)."""
    added: Snapshot
    """To counters and histograms, since the report before."""
    gauges: Snapshot
    """As they are."""


def snapshot(metrics: Iterable[Metric], extra: Mapping[str, str] | None = None) -> Snapshot:
    """Return the samples of `prometheus_client` metrics.

    Args:
        metrics: as a registry's `collect` gives them.
        extra: labels to add to each sample.
    """
    more = tuple((extra or {}).items())
    return {
        Family(metric.name, metric.type, metric.documentation): {
            Sample(sample.name, (*sample.labels.items(), *more)): sample.value
            for sample in metric.samples
            if not sample.name.endswith(_CREATED)
        }
        for metric in metrics
    }


def growth(now: Snapshot, before: Snapshot) -> Snapshot:
    """Return what counters and histograms grew by. One that fell began anew, so it grew by what it is.

    A sample that is new is there even if it is 0: a series that exists says more than one that does not.
    """
    return {
        family: grown
        for family, samples in now.items()
        if family.kind in _GROWING and (grown := dict(_grown(samples, before.get(family, {}))))
    }


def _grown(now: Mapping[Sample, float], before: Mapping[Sample, float]) -> Iterator[tuple[Sample, float]]:
    for sample, value in now.items():
        old = before.get(sample)
        if old is None or value < old:
            yield sample, value
        elif value > old:
            yield sample, value - old


def gauges(now: Snapshot) -> Snapshot:
    """Return the gauges of a snapshot."""
    return {family: samples for family, samples in now.items() if family.kind not in _GROWING}


class Totals:
    """The sums of what replicas reported, and the gauges of those that are there."""

    def __init__(self) -> None:
        self._added: Snapshot = {}
        self._numbers: dict[str, int] = {}
        """By replica, also those that are gone: a late report must not count again. Some bytes each."""
        self._gauges: dict[str, Snapshot] = {}

    def take(self, report: MetricsReport) -> None:
        """Add a report, once."""
        self._gauges[report.replica_id] = report.gauges
        if report.number <= self._numbers.get(report.replica_id, 0):
            return
        self._numbers[report.replica_id] = report.number
        for family, samples in report.added.items():
            sums = self._added.setdefault(family, {})
            for sample, value in samples.items():
                sums[sample] = sums.get(sample, 0.0) + value

    def forget(self, replica_id: str) -> None:
        """Drop the gauges of a replica that is gone."""
        self._gauges.pop(replica_id, None)

    def metrics(self) -> Iterator[Metric]:
        """Yield all metrics, by name."""
        merged = {family: dict(samples) for family, samples in self._added.items()} | self._merged_gauges()
        for family, samples in sorted(merged.items(), key=lambda item: item[0].name):
            metric = Metric(family.name, family.help, family.kind)
            for sample, value in samples.items():
                metric.add_sample(sample.name, dict(sample.labels), value)
            yield metric

    def _merged_gauges(self) -> Snapshot:
        values: dict[Family, dict[Sample, list[float]]] = {}
        for snapshot in self._gauges.values():
            for family, samples in snapshot.items():
                for sample, value in samples.items():
                    values.setdefault(family, {}).setdefault(sample, []).append(value)
        return {
            family: {sample: _MERGE[across(family.name)](each) for sample, each in samples.items()}
            for family, samples in values.items()
        }


@dataclass(frozen=True, slots=True)
class _Collector:
    metrics: list[Metric]

    def collect(self) -> list[Metric]:
        return self.metrics


def exposition(metrics: list[Metric]) -> bytes:
    """Return metrics as Prometheus reads them; see `CONTENT_TYPE`."""
    return generate_latest(_Collector(metrics))


def across(gauge: str) -> Across:
    """Return how a gauge of several replicas becomes one. Of vLLM's, only numbers of requests add up."""
    if gauge.startswith(VLLMS_METRICS):
        return "sum" if gauge.startswith(f"{VLLMS_METRICS}num_requests") else "max"
    return _ACROSS.get(gauge, "sum")
