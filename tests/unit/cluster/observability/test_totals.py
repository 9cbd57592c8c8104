"""Totals of several replicas: each counted once, whatever is sent again, goes, or begins anew."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from cluster.observability.totals import MetricsReport, Snapshot, Totals, across, exposition, gauges, growth, snapshot


class Replica:
    """A replica with one series of each kind, and its reports."""

    def __init__(self, name: str) -> None:
        self.name, self.number = name, 0
        self.registry = CollectorRegistry()
        self.requests = Counter("requests", "Requests.", ("tier",), registry=self.registry)
        self.wait = Histogram("wait_seconds", "Waits.", registry=self.registry, buckets=(1.0, 2.0))
        self.open = Gauge("open", "Open ones.", registry=self.registry)
        self.sent: Snapshot = {}

    def report(self) -> MetricsReport:
        now = snapshot(self.registry.collect())
        self.number += 1
        report = MetricsReport(self.name, self.number, 0, growth(now, self.sent), gauges(now))
        self.sent = now
        return report


def values(totals: Totals) -> dict[str, float]:
    """Values by the sample's name and labels, as Prometheus's own parser reads them."""
    text = exposition(list(totals.metrics())).decode()
    return {
        sample.name + "".join(f" {value}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_totals_of_two_replicas_are_their_sums() -> None:
    totals, replicas = Totals(), (Replica("a"), Replica("b"))
    for replica in replicas:
        for _ in range(2):
            replica.requests.labels("eco").inc()
            replica.wait.observe(1.5)
            replica.open.set(3)
            totals.take(replica.report())
    seen = values(totals)
    assert (seen["requests_total eco"], seen["open"]) == (4, 6)
    assert (seen["wait_seconds_bucket 1.0"], seen["wait_seconds_bucket 2.0"], seen["wait_seconds_bucket +Inf"]) == (
        0,
        4,
        4,
    )
    assert (seen["wait_seconds_count"], seen["wait_seconds_sum"]) == (4, 6)


def test_a_report_that_is_sent_again_counts_once() -> None:
    totals, replica = Totals(), Replica("a")
    replica.requests.labels("eco").inc(5)
    report = replica.report()
    totals.take(report)
    totals.take(report)
    assert values(totals)["requests_total eco"] == 5


def test_a_counter_stays_when_its_replica_goes_and_its_gauges_go() -> None:
    totals, gone, stays = Totals(), Replica("a"), Replica("b")
    for replica in (gone, stays):
        replica.requests.labels("eco").inc()
        replica.open.set(1)
        totals.take(replica.report())
    totals.forget("a")
    assert (values(totals)["requests_total eco"], values(totals)["open"]) == (2, 1)
    totals.take(gone.report())  # late
    assert values(totals)["requests_total eco"] == 2


def test_new_totals_begin_at_what_is_added_from_then_on() -> None:
    replica, totals = Replica("a"), Totals()
    replica.requests.labels("eco").inc(7)
    replica.report()  # to a pool that has died since
    replica.requests.labels("eco").inc(2)
    totals.take(replica.report())
    assert values(totals)["requests_total eco"] == 2


def test_an_engine_that_begins_anew_in_the_same_process_adds_what_it_has() -> None:
    before, now = Replica("a"), Replica("a")
    before.requests.labels("eco").inc(5)
    now.requests.labels("eco").inc(3)
    totals = Totals()
    totals.take(before.report())
    after = snapshot(now.registry.collect())
    totals.take(MetricsReport("a", 2, 0, growth(after, before.sent), {}))
    assert values(totals)["requests_total eco"] == 8


def test_a_series_that_has_counted_nothing_yet_is_there() -> None:
    replica, totals = Replica("a"), Totals()
    replica.requests.labels("eco")
    totals.take(replica.report())
    assert values(totals)["requests_total eco"] == 0


def test_a_report_holds_only_what_has_changed() -> None:
    replica = Replica("a")
    replica.requests.labels("eco").inc()
    replica.report()
    assert replica.report().added == {}


def test_labels_are_added_to_every_sample() -> None:
    replica = Replica("a")
    replica.requests.labels("eco").inc()
    [samples] = [s for f, s in snapshot(replica.registry.collect(), {"replica": "a"}).items() if f.name == "requests"]
    assert [dict(sample.labels) for sample in samples] == [{"tier": "eco", "replica": "a"}]


@pytest.mark.parametrize(
    ("gauge", "how"),
    [
        ("power_lever_open_requests", "sum"),
        ("power_lever_acceptance_rate_ratio", "mean"),
        ("power_lever_acceptance_drift", "max"),
        ("vllm:num_requests_running", "sum"),
        ("vllm:kv_cache_usage_perc", "max"),
    ],
)
def test_a_gauge_of_several_replicas_is_merged_by_what_it_says(gauge: str, how: str) -> None:
    assert across(gauge) == how
    totals = Totals()
    for name, value in (("a", 1.0), ("b", 3.0)):
        registry = CollectorRegistry()
        Gauge(gauge, "A gauge.", registry=registry).set(value)
        totals.take(MetricsReport(name, 1, 0, {}, snapshot(registry.collect())))
    assert values(totals)[gauge] == {"sum": 4, "mean": 2, "max": 3}[how]
