"""Drift alarms: certain and large falls only."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.engine import drift
from serve_app.engine.drift import Drift, DriftWatch, Window

MIN_FALL = 0.1


def compare(recent: Window, reference: Window) -> Drift:
    return drift.compare(recent, reference, min_tokens=500, min_fall=MIN_FALL)


def compared(watch: DriftWatch) -> Drift:
    return compare(watch.recent, watch.reference)


def window(drafted: float, rate: float) -> Window:
    return Window(drafted, drafted * rate)


def test_z_is_that_of_the_two_proportion_test_with_runs_for_trials() -> None:
    # p = 0.55, 1,000 / 8 = 125 trials in each: z = -0.1 / sqrt(0.55 * 0.45 * 2 / 125).
    seen = compare(window(1000, 0.5), window(1000, 0.6))
    assert seen.z == pytest.approx(-1.589, abs=0.001)
    assert not seen.alert


def test_a_certain_and_large_fall_is_an_alarm() -> None:
    seen = compare(window(5000, 0.4), window(50_000, 0.6))
    assert (seen.recent, seen.reference) == pytest.approx((0.4, 0.6))
    assert seen.alert


def test_a_certain_but_small_fall_is_none() -> None:
    seen = compare(window(50_000, 0.55), window(500_000, 0.6))
    assert seen.z < -4
    assert not seen.alert


def test_a_rise_is_none() -> None:
    assert not compare(window(5000, 0.9), window(50_000, 0.3)).alert


@pytest.mark.parametrize(("recent", "reference"), [(499, 10_000), (10_000, 499), (0, 0)])
def test_a_small_sample_never_alarms(recent: float, reference: float) -> None:
    seen = compare(window(recent, 0.0), window(reference, 1.0))
    assert (seen.z, seen.alert) == (0.0, False)


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_windows_without_any_spread_do_not_differ(rate: float) -> None:
    assert compare(window(1000, rate), window(1000, rate)).z == 0.0


def test_bursty_text_does_not_alarm_by_itself() -> None:
    # Runs of 8 drafts, all accepted or none, half of them each: 400 windows' worth of looks.
    rng = random.Random(0)
    watch, alarms = DriftWatch(), 0
    for _ in range(20_000):
        watch = watch.after(8, rng.choice((0, 8)))
        alarms += compared(watch).alert
    assert alarms == 0


def test_a_draft_that_stops_fitting_is_noticed_within_the_recent_memory() -> None:
    rng = random.Random(0)

    def steps(watch: DriftWatch, likely: float, count: int) -> DriftWatch:
        for _ in range(count):
            watch = watch.after(4, sum(rng.random() < likely for _ in range(4)))
        return watch

    before = steps(DriftWatch(), 0.7, 5000)
    assert not compared(before).alert
    assert compared(steps(before, 0.3, 500)).alert


def test_the_windows_share_no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    # What the recent window forgets passes on; the reference forgets so slowly that all is still there.
    monkeypatch.setattr(drift, "REFERENCE_MEMORY_TOKENS", 1e12)
    watch = DriftWatch()
    for _ in range(1000):
        watch = watch.after(10, 6)
    assert watch.recent.drafted + watch.reference.drafted == pytest.approx(10_000)
    # A memory of 2,000 tokens after five of them: 2,005 (1 - exp(-5)).
    assert watch.recent.drafted == pytest.approx(1991.5, abs=0.1)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1e6), st.floats(0, 1e6))
def test_an_alarm_is_always_a_fall(recent: float, reference: float, drafted: float, earlier: float) -> None:
    seen = compare(window(drafted, recent), window(earlier, reference))
    assert not seen.alert or seen.reference - seen.recent >= MIN_FALL
