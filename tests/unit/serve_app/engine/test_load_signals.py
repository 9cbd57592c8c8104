"""What a replica tells the scaling policy."""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.engine.interface import EngineLoad
from serve_app.engine.load_signals import SERVICE_S, WAITS_S, LoadSignals

IDLE = EngineLoad(0, 0)


@dataclass
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_the_queue_wait_is_the_way_to_the_engine_and_the_wait_in_it() -> None:
    signals = LoadSignals(900.0, Clock())
    with signals.request(asked_s=999.5), signals.request(asked_s=999.9):
        stats = signals.stats(EngineLoad(running=2, waiting=1, kv_usage=0.25, queue_wait_ms=50))
    assert round(stats.pop("queue_wait_ms")) == 350
    assert stats == {"engine_running": 2, "engine_waiting": 1, "kv_usage": 0.25, "service_s": 0, "idle_s": 0}


def test_a_request_that_has_waited_for_the_replica_to_start_is_no_queue_wait() -> None:
    signals = LoadSignals(1000.0, Clock())
    with signals.request(asked_s=940.0):
        assert signals.stats(IDLE)["queue_wait_ms"] == 0


def test_a_clock_that_is_ahead_gives_no_negative_wait() -> None:
    signals = LoadSignals(900.0, Clock())
    with signals.request(asked_s=1000.2):
        assert signals.stats(IDLE)["queue_wait_ms"] == 0


def test_what_ended_tells_how_long_a_request_takes() -> None:
    clock = Clock()
    signals = LoadSignals(900.0, clock)
    for took_s in (2.0, 4.0):
        with signals.request(clock.now_s):
            clock.now_s += took_s
    assert signals.stats(IDLE)["service_s"] == 3.0


def test_a_replica_is_idle_since_its_last_request_or_since_it_began() -> None:
    clock = Clock()
    signals = LoadSignals(990.0, clock)
    assert signals.stats(IDLE)["idle_s"] == 10
    with signals.request(clock.now_s):
        clock.now_s += 5
        assert signals.stats(IDLE)["idle_s"] == 0
    clock.now_s += 3
    assert signals.stats(IDLE)["idle_s"] == 3


def test_only_what_was_lately_counts() -> None:
    clock = Clock()
    signals = LoadSignals(900.0, clock)
    with signals.request(asked_s=999.0):
        clock.now_s += 1
    clock.now_s += WAITS_S
    assert signals.stats(IDLE)["queue_wait_ms"] == 0
    assert signals.stats(IDLE)["service_s"] == 1
    clock.now_s += SERVICE_S
    assert signals.stats(IDLE)["service_s"] == 0
