"""The autoscaling benchmark's traffic: recorded and made, scaled to a tier."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.scaling.hardware import Hardware, hardware_of
from bench.scaling.simulation import Trace
from bench.scaling.traffic import PEAK, SHAPES, SPREAD_S, Recording, TrafficError, made, read_recording, scaled
from tests.unit.bench.scaling.hardware import PLAIN

HEADING = "arrival_s,prompt_tokens,completion_tokens\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.csv"
    path.write_text(text)
    return path


def busiest_minute(trace: Trace, hardware: Hardware) -> float:
    """Return its work in replicas."""
    work_s = hardware.work_s(trace.prompt_tokens, trace.completion_tokens)
    return float(np.bincount((trace.arrivals_s // 60).astype(int), weights=work_s).max() / 60)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_made_traffic_is_the_same_for_the_same_seed_and_fits_the_tier(name: str) -> None:
    hardware = hardware_of("eco")
    one, same, other = (made(name, hardware, 4, 3600.0, seed) for seed in (1, 1, 2))
    assert np.array_equal(one.arrivals_s, same.arrivals_s)
    assert np.array_equal(one.completion_tokens, same.completion_tokens)
    assert not np.array_equal(one.arrivals_s[:100], other.arrivals_s[:100])
    assert np.all(np.diff(one.arrivals_s) >= 0)
    assert 0 <= one.arrivals_s[0] <= one.arrivals_s[-1] < 3600
    # The busiest minute asks for less than what four replicas can do, give or take chance.
    assert 0.5 * 4 < busiest_minute(one, hardware) < 1.15 * 4


def test_a_recording_is_read_in_the_order_of_arrival_from_its_first_request_on(tmp_path: Path) -> None:
    # Columns in another order, one more, a byte order mark, and requests that are not sorted.
    text = "﻿completion_tokens,arrival_s,model,prompt_tokens\n7,12.5,a,100\n9,10,b,30\n0,11,c,0\n"
    recording = read_recording(written(tmp_path, text))
    assert recording.name == "mine"
    assert recording.arrivals_s.tolist() == [0, 1, 2.5]
    # A request has at least one token of each kind.
    assert recording.prompt_tokens.tolist() == [30, 1, 100]
    assert recording.completion_tokens.tolist() == [9, 1, 7]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "mine.csv: no column arrival_s, prompt_tokens, completion_tokens; the first line must name"),
        ("arrival_s,prompt_tokens\n1,2\n", "mine.csv: no column completion_tokens; the first line must name"),
        (HEADING, "mine.csv: 0 requests at one time are no traffic"),
        (HEADING + "5,1,1\n5,2,2\n", "mine.csv: 2 requests at one time are no traffic"),
        (HEADING + "0,1,1\n1,two,3\n", "mine.csv, line 3: got '1', 'two', '3' for arrival_s, prompt_tokens, "),
        (HEADING + "0,1,1\n1,2\n", "mine.csv, line 3: got '1', '2', None for arrival_s, prompt_tokens, "),
        (HEADING + "0,1,1\n1,-2,3\n", "mine.csv, line 3: got 1, -2, 3; needed are finite numbers from 0 on"),
        (HEADING + "0,1,1\nnan,2,3\n", "mine.csv, line 3: got nan, 2, 3; needed are finite numbers from 0 on"),
        (HEADING + "0,1,1\ninf,2,3\n", "mine.csv, line 3: got inf, 2, 3; needed are finite numbers from 0 on"),
    ],
)
def test_a_bad_recording_is_refused_in_one_line_that_says_where_it_is_wrong(
    tmp_path: Path, text: str, says: str
) -> None:
    with pytest.raises(TrafficError) as caught:
        read_recording(written(tmp_path, text))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_missing_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrafficError, match=r"none\.csv: cannot be read: "):
        read_recording(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TrafficError, match=r"binary\.csv: cannot be read: "):
        read_recording(tmp_path / "binary.csv")


def recording() -> Recording:
    """Ten minutes with a request every second, and in the fifth minute three every second."""
    arrivals_s = np.sort(np.concatenate([np.arange(600.0), np.arange(240.0, 300.0), np.arange(240.0, 300.0)]))
    return Recording("r", arrivals_s, np.full(720, 1.0), np.full(720, 96.0))


def test_the_busiest_minute_of_a_scaled_recording_is_eight_tenths_of_all_replicas() -> None:
    trace = scaled(recording(), PLAIN, 100, seed=1)
    # 1500 requests of 5.25 s: chance changes that by 1 / sqrt(1500) = 2.6%.
    assert busiest_minute(trace, PLAIN) == pytest.approx(PEAK * 100, rel=0.1)
    per_minute = np.bincount((trace.arrivals_s // 60).astype(int))
    assert per_minute[4] / per_minute[2] == pytest.approx(3, rel=0.25)


def test_the_repetitions_of_a_request_come_within_two_seconds_so_a_burst_stays_one() -> None:
    burst = Recording("b", np.array([0.0, 100.0]), np.array([1.0, 7.0]), np.array([96.0, 96.0]))
    trace = scaled(burst, PLAIN, 100, seed=1)
    assert len(trace.arrivals_s) > 1000
    after_s = trace.arrivals_s - np.where(trace.prompt_tokens == 7.0, 100.0, 0.0)
    assert 0 <= after_s.min() < 0.1
    assert SPREAD_S - 0.1 < after_s.max() <= SPREAD_S
    assert np.all(np.diff(trace.arrivals_s) >= 0)


def test_a_recording_scaled_down_loses_requests_by_chance_and_is_the_same_for_the_same_seed() -> None:
    one, same, other = (scaled(recording(), PLAIN, 4, seed) for seed in (1, 1, 2))
    # 3.2 replicas do 36.6 of the 180 requests of the busiest minute.
    assert len(one.arrivals_s) == pytest.approx(720 * 36.6 / 180, rel=0.3)
    assert np.array_equal(one.arrivals_s, same.arrivals_s)
    assert not np.array_equal(one.arrivals_s[:50], other.arrivals_s[:50])
