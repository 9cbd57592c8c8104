"""What a replica reports: load signals for the scaling policy, and acceptance as metrics with the drift signal."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from serve_app.engine.interface import DraftCount, EngineLoad
from serve_app.engine.metrics import SERVICE_S, AcceptanceMetrics, BusyMetrics, LoadSignals
from serve_app.engine.recent import WAITS_S
from serve_app.speculation.settings import SpeculationSettings
from tests.support.recorded_meter import RecordedMeter

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
RATE = "power_lever_acceptance_rate_ratio"
DRIFT = "power_lever_acceptance_drift"
SECONDS = "power_lever_engine_seconds_total"
JOULES = "power_lever_gpu_joules_total"


def test_totals_are_counted_once_however_often_they_are_published() -> None:
    meter = RecordedMeter()
    metrics = AcceptanceMetrics("eco", SETTINGS, meter)
    for _ in range(3):
        metrics.publish({"code": DraftCount(100, 80), "math": DraftCount(10, 0)})
    metrics.publish({"code": DraftCount(150, 90), "math": DraftCount(10, 0)})
    assert meter.counters == {
        DRAFTS: {("eco", "code"): 150, ("eco", "math"): 10},
        ACCEPTED: {("eco", "code"): 90},
    }


def test_totals_that_the_engine_counts_in_place_are_seen_to_change() -> None:
    meter, count = RecordedMeter(), DraftCount(10, 5)
    metrics = AcceptanceMetrics("eco", SETTINGS, meter)
    metrics.publish({"code": count})
    count.drafted, count.accepted = 30, 25
    metrics.publish({"code": count})
    assert meter.counters == {DRAFTS: {("eco", "code"): 30}, ACCEPTED: {("eco", "code"): 25}}


def test_a_steady_category_gives_its_rate_and_no_alarm() -> None:
    meter = RecordedMeter()
    metrics = AcceptanceMetrics("eco", SETTINGS, meter)
    for step in range(1, 101):
        metrics.publish({"code": DraftCount(100 * step, 80 * step)})
    assert meter.gauges[RATE]["eco", "code"] == pytest.approx(0.8)
    assert meter.gauges[DRIFT]["eco", "code"] == 0


def test_a_fall_raises_one_alarm_for_its_category_alone_and_recovery_ends_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    meter = RecordedMeter()
    metrics = AcceptanceMetrics("eco", SETTINGS, meter)
    code, creative = DraftCount(), DraftCount()

    def run(code_rate: float, steps: int) -> None:
        for _ in range(steps):
            code.drafted += 100
            code.accepted += round(100 * code_rate)
            creative.drafted += 100
            creative.accepted += 50
            metrics.publish({"code": code, "creative": creative})

    run(0.8, 100)
    assert (meter.gauges[DRIFT]["eco", "code"], caplog.messages) == (0, [])
    run(0.3, 15)
    assert (meter.gauges[DRIFT]["eco", "code"], meter.gauges[DRIFT]["eco", "creative"]) == (1, 0)
    assert len(caplog.messages) == 1
    assert "tier eco: acceptance of code drafts has fallen" in caplog.messages[0]
    run(0.8, 60)
    assert meter.gauges[DRIFT]["eco", "code"] == 0
    assert "has recovered" in caplog.messages[1]


def test_a_switch_to_n_gram_drafting_is_published() -> None:
    meter = RecordedMeter()
    metrics = AcceptanceMetrics("eco", SETTINGS, meter)
    metrics.publish_drafts("own")
    assert meter.gauges == {"power_lever_ngram_fallback": {("eco",): 0}}
    metrics.publish_drafts("ngram")
    assert meter.gauges == {"power_lever_ngram_fallback": {("eco",): 1}}


def test_busy_and_idle_time_add_up_to_the_time_since_the_engine_was_ready() -> None:
    meter = RecordedMeter()
    metrics = BusyMetrics("eco", {}, meter)
    for busy_s, up_s in ((0.0, 10.0), (4.0, 15.0), (4.0, 16.0), (9.0, 21.0)):
        metrics.publish(busy_s, up_s, None)
    assert meter.counters == {SECONDS: {("eco", "idle"): 12.0, ("eco", "busy"): 9.0}}


def test_the_energy_of_gpus_is_that_of_their_counters_or_that_of_the_tiers_watts() -> None:
    meter = RecordedMeter()
    metrics = BusyMetrics("eco", {"busy": 100.0, "idle": 10.0}, meter)
    metrics.publish(2.0, 10.0, None)  # 8 s idle, nothing is measured yet
    metrics.publish(3.0, 12.0, {"busy": 50.0, "idle": 6.0})
    metrics.publish(4.0, 14.0, {"busy": 90.0, "idle": 11.0})
    metrics.publish(6.0, 17.0, None)  # 2 s busy, 1 s idle
    assert meter.counters[JOULES] == {
        ("eco", "busy", "modelled"): 400.0,
        ("eco", "idle", "modelled"): 90.0,
        ("eco", "busy", "measured"): 90.0,
        ("eco", "idle", "measured"): 11.0,
    }
    assert meter.counters[SECONDS] == {("eco", "busy"): 6.0, ("eco", "idle"): 11.0}
