"""Meters take what the catalogue has, and nothing else."""

from __future__ import annotations

import pytest
from ray.util import metrics

from cluster.observability import series
from cluster.observability.meter import LocalMeter, Meters, RayMeter, bounded
from cluster.observability.series import Series
from tests.support.recorded_meter import RecordedMeter

ECO = {"tier": "eco", "category": "code"}


def value(meter: LocalMeter, name: str, **labels: str) -> float | None:
    return meter.registry.get_sample_value(name, labels)


def test_a_local_meter_counts_sets_and_observes() -> None:
    ingress, engine = LocalMeter("ingress"), LocalMeter("engine")
    ingress.count(series.PROMPT_TOKENS, 3, ECO)
    ingress.count(series.PROMPT_TOKENS, 4, dict(reversed(ECO.items())))
    ingress.set(series.OPEN_REQUESTS, 5)
    ingress.observe(series.PLAN_DURATION, 0.002)
    engine.set(series.ACCEPTANCE_RATE, 0.5, ECO)
    assert value(ingress, "power_lever_prompt_tokens_total", **ECO) == 7
    assert value(ingress, "power_lever_open_requests") == 5
    assert value(ingress, "power_lever_plan_duration_seconds_bucket", le="0.001") == 0
    assert value(ingress, "power_lever_plan_duration_seconds_bucket", le="0.0025") == 1
    assert value(engine, "power_lever_acceptance_rate_ratio", **ECO) == 0.5


def test_nothing_is_counted_for_nothing() -> None:
    # Ray raises for it.
    for meter in (LocalMeter("engine"), RayMeter("engine")):
        meter.count(series.DRAFT_TOKENS, 0, ECO)


@pytest.mark.parametrize("meter", [LocalMeter("engine"), RayMeter("engine")], ids=lambda meter: type(meter).__name__)
def test_a_series_of_another_process_is_refused(meter: LocalMeter) -> None:
    with pytest.raises(KeyError):
        meter.count(series.REQUESTS, 1, {})


def test_ray_is_told_the_gauges_again_as_it_forgets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, float, dict[str, str]]] = []
    monkeypatch.setattr(metrics.Gauge, "set", lambda self, value, tags: told.append((self.info["name"], value, tags)))
    meter = RayMeter("engine")
    meter.set(series.NGRAM_FALLBACK, 1, {"tier": "eco"})
    meter.set(series.NGRAM_FALLBACK, 0, {"tier": "ultra"})
    meter.set(series.NGRAM_FALLBACK, 0, {"tier": "eco"})
    told.clear()
    meter.refresh()
    name = "power_lever_ngram_fallback"
    assert told == [(name, 0, {"tier": "eco"}), (name, 0, {"tier": "ultra"})]


def test_several_meters_take_everything() -> None:
    both = (RecordedMeter(), RecordedMeter())
    meters = Meters(both)
    meters.count(series.PROMPT_TOKENS, 3, ECO)
    meters.set(series.OPEN_REQUESTS, 5, {})
    meters.observe(series.PLAN_DURATION, 0.5, {})
    for meter in both:
        assert meter.counters == {"power_lever_prompt_tokens_total": {("eco", "code"): 3}}
        assert meter.gauges == {"power_lever_open_requests": {(): 5}}
        assert meter.histograms == {"power_lever_plan_duration_seconds": {(): [0.5]}}


def test_a_value_that_the_catalogue_does_not_have_becomes_another() -> None:
    assert bounded("code", "overloaded") == "overloaded"
    assert bounded("code", "something new") == "other"
    assert bounded("category", "a prompt of a user", series.NONE) == "none"


@pytest.mark.parametrize("each", series.CATALOGUE, ids=lambda each: each.name)
def test_every_label_has_the_name_that_ray_and_prometheus_take(each: Series) -> None:
    assert all(label.isidentifier() and label != "le" for label in each.labels)
