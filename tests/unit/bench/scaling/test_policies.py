"""The policies that the autoscaling benchmark compares."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.scaling.policies import FAMILIES, MIN_REPLICAS, OURS, Tier
from bench.scaling.simulation import Policy, Snapshot, Trace, simulate
from tests.unit.bench.scaling.hardware import PLAIN

HARDWARE = replace(PLAIN, slots=32, host_s=(0.0,) * 33, pass_s=(0.1,) * 33)
NOTHING = Trace("t", np.zeros(0), np.zeros(0), np.zeros(0), 3000.0)


def policy_of(name: str, replicas_max: int, setting: float, trace: Trace = NOTHING) -> Policy:
    return FAMILIES[name].make(Tier(trace, HARDWARE, replicas_max), setting)


def snapshot(**over: float) -> Snapshot:
    return replace(Snapshot(0.0, 2, 2, 0, 0, 0, 0.0, 0.0), **over)  # type: ignore[arg-type]


def test_serves_own_policy_waits_half_a_minute_before_it_scales_out() -> None:
    policy = policy_of("serve_default", 10, 16)
    answers = [policy(snapshot(now_s=float(t), engine_running=60, queued=4)) for t in range(100)]
    first = next(t for t, answer in enumerate(answers) if answer > 2)
    assert 30 <= first <= 32
    assert answers[first] == 4  # 64 requests, 16 for each


def test_keda_follows_the_waiting_requests_once_per_poll() -> None:
    policy = policy_of("keda_queue", 100, 5)
    assert policy(snapshot(queued=8, engine_waiting=3)) == 3
    assert policy(snapshot(now_s=5.0, queued=500)) == 2  # not polled
    assert policy(snapshot(now_s=15.0, queued=500)) == 6  # four more at a time
    assert policy(snapshot(now_s=30.0, target=20, queued=500)) == 40  # or twice as many


def test_keda_scales_in_to_what_the_last_five_minutes_needed() -> None:
    policy = policy_of("keda_queue", 100, 5)
    assert policy(snapshot(target=6, queued=25)) == 5
    assert policy(snapshot(now_s=285.0, target=5)) == 5
    assert policy(snapshot(now_s=300.0, target=5)) == MIN_REPLICAS


def test_fixed_numbers_go_from_a_quarter_to_all_replicas() -> None:
    assert FAMILIES["fixed"].settings(HARDWARE, 4) == [1, 2, 3, 4]
    assert FAMILIES["fixed"].settings(HARDWARE, 32) == [8, 12, 16, 20, 24, 28, 32]
    assert policy_of("fixed", 4, 3)(snapshot(queued=1000)) == 3


def test_serves_target_goes_from_a_quarter_to_all_of_the_slots() -> None:
    settings = FAMILIES["serve_default"].settings(HARDWARE, 4)
    assert (min(settings), max(settings)) == (8, 32)


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"fixed", "fixed_admission", "clairvoyant"}))
def test_every_policy_keeps_between_one_and_the_most(name: str) -> None:
    policy = policy_of(name, 3, FAMILIES[name].settings(HARDWARE, 3)[0])
    for second in range(200):
        answer = policy(
            snapshot(now_s=float(second), target=3, running=3, queued=5000, engine_running=96, service_s=14.0)
        )
        assert 1 <= answer <= 3
    for second in range(200, 2000):
        answer = policy(snapshot(now_s=float(second), target=answer, running=answer))
        assert 1 <= answer <= 3
    assert answer == 1


def test_ours_is_the_shipped_policy() -> None:
    policy = policy_of(OURS, 10, 0.01)
    target = 1
    for second in range(5):
        target = policy(snapshot(now_s=float(second), target=target, running=1, queued=40 * second, engine_running=32))
    assert target > 1


def test_the_clairvoyant_has_its_replicas_when_the_burst_comes_and_at_no_other_time() -> None:
    # 60 prompts of 0.5 s in the second at 500 s, then in two seconds 15 replicas' work; no answer decodes.
    burst = Trace("t", np.full(60, 500.2), np.ones(60), np.ones(60), 1000.0)
    policy = policy_of("clairvoyant", 20, 1.0, burst)
    targets = [policy(snapshot(now_s=float(second))) for second in range(1000)]
    # A replica takes at most 12 s to start.
    assert [second for second, target in enumerate(targets) if target == 15] == list(range(487, 502))
    assert set(targets[:487]) | set(targets[502:]) == {MIN_REPLICAS}
    outcome = simulate(burst, HARDWARE, policy, ttft_target_s=2.1, initial=1)
    assert outcome.missed < 0.2 * 60
