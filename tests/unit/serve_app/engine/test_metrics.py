"""What a replica reports: load signals for the scaling policy, and acceptance as metrics with the drift signal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from serve_app.engine.interface import DraftCount, EngineLoad
from serve_app.engine.metrics import SERVICE_S, AcceptanceMetrics, BusyMetrics, LoadSignals
from serve_app.engine.recent import WAITS_S
from serve_app.speculation.settings import SpeculationSettings

# --- load signals ---


IDLE = EngineLoad(0, 0)


@dataclass
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_the_queue_wait_is_the_time_to_reach_the_engine_and_the_wait_in_it() -> None:
    signals = LoadSignals(900.0, Clock())
    with signals.request(called_s=999.5), signals.request(called_s=999.9):
        stats = signals.stats(EngineLoad(running=2, waiting=1, kv_usage=0.25, queue_wait_ms=50, prompts=0.5))
    assert round(stats.pop("queue_wait_ms")) == 350
    rest = {"engine_running": 2, "engine_waiting": 1, "kv_usage": 0.25, "prompts": 0.5, "service_s": 0, "idle_s": 0}
    assert stats == rest | {"taken_per_s": 2}


def test_a_request_that_has_waited_for_the_replica_to_start_is_no_queue_wait() -> None:
    signals = LoadSignals(1000.0, Clock())
    with signals.request(called_s=940.0):
        assert signals.stats(IDLE)["queue_wait_ms"] == 0


def test_a_clock_that_is_ahead_gives_no_negative_wait() -> None:
    signals = LoadSignals(900.0, Clock())
    with signals.request(called_s=1000.2):
        assert signals.stats(IDLE)["queue_wait_ms"] == 0


def test_requests_that_ended_show_how_long_one_takes() -> None:
    clock = Clock()
    signals = LoadSignals(900.0, clock)
    for took_s in (2.0, 4.0):
        with signals.request(clock.now_s):
            clock.now_s += took_s
    assert signals.stats(IDLE)["service_s"] == 3.0


def test_a_request_is_counted_as_taken_for_a_second() -> None:
    clock = Clock()
    signals = LoadSignals(900.0, clock)
    with signals.request(clock.now_s):
        clock.now_s += 0.5
        assert signals.stats(IDLE)["taken_per_s"] == 1
        clock.now_s += 0.5
        assert signals.stats(IDLE)["taken_per_s"] == 0


def test_a_replica_is_idle_since_its_last_request_or_since_it_began() -> None:
    clock = Clock()
    signals = LoadSignals(990.0, clock)
    assert signals.stats(IDLE)["idle_s"] == 10
    with signals.request(clock.now_s):
        clock.now_s += 5
        assert signals.stats(IDLE)["idle_s"] == 0
    clock.now_s += 3
    assert signals.stats(IDLE)["idle_s"] == 3


def test_only_recent_values_count() -> None:
    clock = Clock()
    signals = LoadSignals(900.0, clock)
    with signals.request(called_s=999.0):
        clock.now_s += 1
    clock.now_s += WAITS_S
    assert signals.stats(IDLE)["queue_wait_ms"] == 0
    assert signals.stats(IDLE)["service_s"] == 1
    clock.now_s += SERVICE_S
    assert signals.stats(IDLE)["service_s"] == 0


# --- acceptance ---

SETTINGS = SpeculationSettings(drift_min_tokens=100)
DRAFTS = "power_lever_draft_tokens_total"
ACCEPTED = "power_lever_accepted_draft_tokens_total"
RATE = "power_lever_acceptance_rate"
DRIFT = "power_lever_acceptance_drift"
SECONDS = "power_lever_engine_seconds_total"
JOULES = "power_lever_gpu_joules_total"


class Recorded:
    """Counters and gauges by name and category."""

    def __init__(self) -> None:
        self.counters: dict[tuple[str, str], float] = {}
        self.gauges: dict[tuple[str, str], float] = {}
        self.by_source: dict[tuple[str, str], float] = {}

    def count(self, name: str, amount: float, tags: Mapping[str, str]) -> None:
        assert tags["tier"] == "eco"
        assert amount > 0, "Ray refuses to count nothing"
        if name == JOULES:
            place = (tags["source"], tags["state"])
            self.by_source[place] = self.by_source.get(place, 0) + amount
        key = (name, tags.get("category") or tags["state"])
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


def test_totals_that_the_engine_counts_in_place_are_seen_to_change() -> None:
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


def test_a_fall_raises_one_alarm_for_its_category_alone_and_recovery_ends_it(
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
    assert "has recovered" in caplog.messages[1]


def test_a_switch_to_n_gram_drafting_is_published() -> None:
    sink = Recorded()
    metrics = AcceptanceMetrics("eco", SETTINGS, sink)
    metrics.publish_drafts("own")
    assert sink.gauges == {("power_lever_ngram_fallback", ""): 0}
    metrics.publish_drafts("ngram")
    assert sink.gauges == {("power_lever_ngram_fallback", ""): 1}


def test_busy_and_idle_time_add_up_to_the_time_since_the_engine_was_ready() -> None:
    sink = Recorded()
    metrics = BusyMetrics("eco", {}, sink)
    for busy_s, up_s in ((0.0, 10.0), (4.0, 15.0), (4.0, 16.0), (9.0, 21.0)):
        metrics.publish(busy_s, up_s, None)
    assert sink.counters == {(SECONDS, "idle"): 12.0, (SECONDS, "busy"): 9.0}


def test_the_energy_of_gpus_is_that_of_their_counters_or_that_of_the_tiers_watts() -> None:
    sink = Recorded()
    metrics = BusyMetrics("eco", {"busy": 100.0, "idle": 10.0}, sink)
    metrics.publish(2.0, 10.0, None)  # 8 s idle, nothing is measured yet
    metrics.publish(3.0, 12.0, {"busy": 50.0, "idle": 6.0})
    metrics.publish(4.0, 14.0, {"busy": 90.0, "idle": 11.0})
    metrics.publish(6.0, 17.0, None)  # 2 s busy, 1 s idle
    assert sink.by_source == {
        ("modelled", "busy"): 400.0,
        ("modelled", "idle"): 90.0,
        ("measured", "busy"): 90.0,
        ("measured", "idle"): 11.0,
    }
    assert (sink.counters[SECONDS, "busy"], sink.counters[SECONDS, "idle"]) == (6.0, 11.0)
