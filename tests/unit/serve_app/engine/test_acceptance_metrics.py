"""Acceptance as metrics: counters of what is new, the recent rate, and the drift signal."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from serve_app.engine.acceptance_metrics import AcceptanceMetrics
from serve_app.engine.interface import DraftCount
from serve_app.speculation.settings import SpeculationSettings

SETTINGS = SpeculationSettings(drift_min_tokens=100)
DRAFTS = "power_lever_draft_tokens_total"
ACCEPTED = "power_lever_accepted_draft_tokens_total"
RATE = "power_lever_acceptance_rate"
DRIFT = "power_lever_acceptance_drift"


class Recorded:
    """Counters and gauges by name and category."""

    def __init__(self) -> None:
        self.counters: dict[tuple[str, str], int] = {}
        self.gauges: dict[tuple[str, str], float] = {}

    def count(self, name: str, amount: int, tags: Mapping[str, str]) -> None:
        assert tags["tier"] == "eco"
        assert amount > 0, "Ray refuses to count nothing"
        key = (name, tags["category"])
        self.counters[key] = self.counters.get(key, 0) + amount

    def set(self, name: str, value: float, tags: Mapping[str, str]) -> None:
        self.gauges[name, tags.get("category", "")] = value


def test_totals_are_counted_once_however_often_they_are_published() -> None:
    sink = Recorded()
    metrics = AcceptanceMetrics("eco", SETTINGS, sink)
    for _ in range(3):
        metrics.publish({"code": DraftCount(100, 80), "math": DraftCount(10, 0)})
    metrics.publish({"code": DraftCount(150, 90), "math": DraftCount(10, 0)})
    assert sink.counters == {(DRAFTS, "code"): 150, (ACCEPTED, "code"): 90, (DRAFTS, "math"): 10}


def test_totals_that_the_engine_goes_on_counting_in_place_are_seen_to_change() -> None:
    sink, count = Recorded(), DraftCount(10, 5)
    metrics = AcceptanceMetrics("eco", SETTINGS, sink)
    metrics.publish({"code": count})
    count.drafted, count.accepted = 30, 25
    metrics.publish({"code": count})
    assert sink.counters == {(DRAFTS, "code"): 30, (ACCEPTED, "code"): 25}


def test_a_steady_category_gives_its_rate_and_no_alarm() -> None:
    sink = Recorded()
    metrics = AcceptanceMetrics("eco", SETTINGS, sink)
    for step in range(1, 101):
        metrics.publish({"code": DraftCount(100 * step, 80 * step)})
    assert sink.gauges[RATE, "code"] == pytest.approx(0.8)
    assert sink.gauges[DRIFT, "code"] == 0


def test_a_fall_raises_the_alarm_for_its_category_alone_says_so_once_and_recovery_ends_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = Recorded()
    metrics = AcceptanceMetrics("eco", SETTINGS, sink)
    code, creative = DraftCount(), DraftCount()

    def run(code_rate: float, steps: int) -> None:
        for _ in range(steps):
            code.drafted += 100
            code.accepted += round(100 * code_rate)
            creative.drafted += 100
            creative.accepted += 50
            metrics.publish({"code": code, "creative": creative})

    run(0.8, 100)
    assert (sink.gauges[DRIFT, "code"], caplog.messages) == (0, [])
    run(0.3, 15)
    assert (sink.gauges[DRIFT, "code"], sink.gauges[DRIFT, "creative"]) == (1, 0)
    assert len(caplog.messages) == 1
    assert "tier eco: acceptance of code drafts has fallen" in caplog.messages[0]
    run(0.8, 60)
    assert sink.gauges[DRIFT, "code"] == 0
    assert "is back" in caplog.messages[1]


def test_a_switch_to_n_gram_drafting_is_published() -> None:
    sink = Recorded()
    metrics = AcceptanceMetrics("eco", SETTINGS, sink)
    metrics.publish_drafts("own")
    assert sink.gauges == {("power_lever_ngram_fallback", ""): 0}
    metrics.publish_drafts("ngram")
    assert sink.gauges == {("power_lever_ngram_fallback", ""): 1}
