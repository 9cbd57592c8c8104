"""The autoscaling benchmark's simulation: requests, replicas that start and leave, and what they cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.autoscaling import HARDWARE, Case, goal_rows, rows_of
from bench.scaling.policies import MIN_REPLICAS, POLICIES, keda_queue, queue_wait, serve_default
from bench.scaling.simulation import Hardware, Outcome, Snapshot, Trace, simulate
from bench.scaling.traffic import SHAPES, make_trace

PLAIN = Hardware(slots=2, cold_start_s=10.0, prefill_s=0.5, token_s=0.1, token_s_per_running=0.0)
"""A request of 95 tokens holds a slot for 10 s."""


def trace(*arrivals_s: float, duration_s: float = 100.0) -> Trace:
    return Trace("t", arrivals_s, [95.0] * len(arrivals_s), duration_s)


def always(count: int) -> object:
    return lambda snapshot: count


def watched(seen: list[Snapshot]) -> object:
    def policy(snapshot: Snapshot) -> int:
        seen.append(snapshot)
        return 1

    return policy


def run(traffic: Trace, policy: object, initial: int, target_s: float = 1.0) -> Outcome:
    return simulate(traffic, PLAIN, policy, ttft_target_s=target_s, initial=initial)  # type: ignore[arg-type]


def test_requests_that_find_a_slot_meet_their_target_and_replicas_cost_their_time() -> None:
    outcome = run(trace(1.0, 1.5, 20.0), always(1), initial=1)
    assert (outcome.requests, outcome.missed, outcome.scale_actions) == (3, 0, 0)
    assert outcome.gpu_hours == pytest.approx(100 / 3600)


def test_a_request_that_finds_no_slot_waits_for_one() -> None:
    # The third waits from 2 s to 11 s, when the first ends.
    assert run(trace(1.0, 1.5, 2.0), always(1), initial=1).missed == 1
    assert run(trace(1.0, 1.5, 2.0), always(1), initial=1, target_s=9.6).missed == 0


def test_a_request_that_never_begins_is_missed() -> None:
    assert run(trace(1.0, 1.0, 2.0, duration_s=5.0), always(1), initial=1).missed == 1


def test_a_replica_costs_from_its_request_and_serves_after_its_cold_start() -> None:
    outcome = run(trace(30.0, 30.0, 30.0, 30.0), lambda snapshot: 1 if snapshot.now_s < 10 else 2, initial=1)
    assert (outcome.missed, outcome.scale_actions, outcome.most_replicas) == (0, 1, 2)
    assert outcome.gpu_hours == pytest.approx((100 + 90) / 3600)
    late = run(trace(12.0, 12.0, 12.0, 12.0), lambda snapshot: 1 if snapshot.now_s < 10 else 2, initial=1)
    assert late.missed == 2


def test_a_removed_replica_finishes_its_requests_and_takes_no_new_ones() -> None:
    # Both are busy when one is removed at 5 s: it ends at 11 s and costs until then.
    outcome = run(trace(1.0, 1.0, 1.0, 1.0), lambda snapshot: 2 if snapshot.now_s < 5 else 1, initial=2)
    assert outcome.missed == 0
    assert outcome.gpu_hours == pytest.approx((100 + 11) / 3600)
    # A request after that finds one replica without a free slot.
    assert run(trace(1.0, 1.0, 1.0, 1.0, 6.0), lambda snapshot: 2 if snapshot.now_s < 5 else 1, initial=2).missed == 1


def test_starting_replicas_are_removed_first() -> None:
    outcome = run(trace(50.0), lambda snapshot: 2 if snapshot.now_s == 20 else 1, initial=1)
    assert outcome.gpu_hours == pytest.approx((100 + 1) / 3600)
    assert outcome.scale_actions == 2


def test_a_policy_sees_the_queue_the_work_and_the_waits() -> None:
    seen: list[Snapshot] = []
    run(trace(1.0, 1.0, 2.0), watched(seen), initial=1)
    assert (seen[3].in_engines, seen[3].queued, seen[3].running) == (2, 1, 1)
    assert seen[12].queue_wait_s == pytest.approx(9.0)
    assert seen[12].service_s == pytest.approx(10.0)


def test_waits_for_a_replica_that_starts_are_not_reported() -> None:
    seen: list[Snapshot] = []
    run(trace(1.0), watched(seen), initial=0)
    assert max(snapshot.queue_wait_s for snapshot in seen) == 0


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_traffic_is_the_same_for_the_same_seed_and_fits_the_tier(name: str) -> None:
    made = make_trace(name, HARDWARE, 4, 3600.0, seed=1)
    assert made == make_trace(name, HARDWARE, 4, 3600.0, seed=1)
    assert made != make_trace(name, HARDWARE, 4, 3600.0, seed=2)
    assert list(made.arrivals_s) == sorted(made.arrivals_s)
    assert 0 <= made.arrivals_s[0] <= made.arrivals_s[-1] < 3600
    # What the busiest minute asks for is less than what four replicas can do.
    per_minute = [0] * 60
    for arrival_s in made.arrivals_s:
        per_minute[int(arrival_s // 60)] += 1
    able = 60 * 4 * HARDWARE.slots / HARDWARE.service_s(400, HARDWARE.slots - 1)
    assert 0.5 * able < max(per_minute) < able * 1.15


def snapshot(**over: float) -> Snapshot:
    return replace(Snapshot(0.0, 2, 2, 0, 0, 0.0, 0.0), **over)  # type: ignore[arg-type]


def test_serves_own_policy_waits_half_a_minute_before_it_scales_out() -> None:
    policy = serve_default(HARDWARE, 10)
    answers = [policy(snapshot(now_s=float(t), in_engines=64)) for t in range(100)]
    first = next(t for t, answer in enumerate(answers) if answer > 2)
    assert 30 <= first <= 32
    assert answers[first] == 4  # 64 requests, 16 for each


def test_keda_follows_the_waiting_requests_once_per_poll() -> None:
    policy = keda_queue(HARDWARE, 100)
    assert policy(snapshot(queued=11)) == 3
    assert policy(snapshot(now_s=5.0, queued=500)) == 2  # not polled
    assert policy(snapshot(now_s=15.0, queued=500)) == 6  # four more at a time
    assert policy(snapshot(now_s=30.0, target=20, queued=500)) == 40  # or twice as many


def test_keda_scales_in_to_what_the_last_five_minutes_needed() -> None:
    policy = keda_queue(HARDWARE, 100)
    assert policy(snapshot(target=6, queued=25)) == 5
    assert policy(snapshot(now_s=285.0, target=5)) == 5
    assert policy(snapshot(now_s=300.0, target=5)) == MIN_REPLICAS


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_keeps_between_one_and_the_most(name: str) -> None:
    policy = POLICIES[name](HARDWARE, 3)
    for second in range(200):
        answer = policy(snapshot(now_s=float(second), target=3, running=3, queued=5000, in_engines=96, service_s=14.0))
        assert 1 <= answer <= 3
    for second in range(200, 2000):
        answer = policy(snapshot(now_s=float(second), target=answer, running=answer))
        assert 1 <= answer <= 3
    assert answer == 1


def test_ours_is_the_shipped_policy() -> None:
    policy = queue_wait(HARDWARE, 10)
    target = 1
    for second in range(5):
        target = policy(snapshot(now_s=float(second), target=target, running=1, queued=40 * second, in_engines=32))
    assert target > 1


def test_the_goal_is_held_against_the_policy_with_fewer_misses() -> None:
    def case(policy: str) -> Case:
        return Case("step", 4, 3600.0, 1, policy)

    outcomes = {
        case("queue_wait"): Outcome(1000, 20, 2.0, 4, 4),
        case("serve_default"): Outcome(1000, 50, 2.0, 4, 4),
        case("keda_queue"): Outcome(1000, 400, 1.0, 9, 4),
    }
    [row] = goal_rows(rows_of(outcomes))
    assert (row["better"], row["met"], row["gpu_hours_ratio"]) == ("serve_default", "yes", 1.0)
    outcomes[case("queue_wait")] = Outcome(1000, 26, 2.0, 4, 4)
    assert goal_rows(rows_of(outcomes))[0]["met"] == "no"
    outcomes[case("queue_wait")] = Outcome(1000, 20, 2.01, 4, 4)
    assert goal_rows(rows_of(outcomes))[0]["met"] == "no"
