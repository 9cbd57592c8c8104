"""The autoscaling benchmark's simulation: requests, engines, replicas that start and leave, and what they cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from bench.scaling.hardware import Hardware
from bench.scaling.simulation import Outcome, Snapshot, Trace, simulate
from tests.unit.bench.scaling.hardware import PLAIN


def trace(*arrivals_s: float, duration_s: float = 100.0, prompt: float = 1.0) -> Trace:
    size = len(arrivals_s)
    return Trace("t", np.array(arrivals_s), np.full(size, prompt), np.full(size, 96.0), duration_s)


def run(
    traffic: Trace,
    policy: Callable[[Snapshot], int],
    initial: int = 1,
    target_s: float = 1.0,
    hardware: Hardware = PLAIN,
    counted_from_s: float = 0.0,
    admission: bool = False,
) -> Outcome:
    return simulate(
        traffic,
        hardware,
        policy,
        ttft_target_s=target_s,
        initial=initial,
        counted_from_s=counted_from_s,
        admission=admission,
    )


def always(count: int) -> Callable[[Snapshot], int]:
    return lambda snapshot: count


def missed(traffic: Trace, target_s: float, admission: bool = False) -> int:
    return run(traffic, always(1), target_s=target_s, admission=admission).missed


def seen(traffic: Trace, hardware: Hardware = PLAIN, initial: int = 1) -> list[Snapshot]:
    """Return what a policy that keeps one replica sees, second by second."""
    snapshots: list[Snapshot] = []

    def policy(snapshot: Snapshot) -> int:
        snapshots.append(snapshot)
        return 1

    run(traffic, policy, initial, hardware=hardware)
    return snapshots


def test_requests_that_find_a_slot_meet_their_target_and_replicas_cost_their_time() -> None:
    outcome = run(trace(1.0, 1.5, 20.0), always(1))
    assert (outcome.requests, outcome.missed, outcome.scale_actions) == (3, 0, 0)
    assert outcome.gpu_hours == pytest.approx(100 / 3600)
    two_cards = run(trace(1.0), always(1), hardware=replace(PLAIN, gpus=2.0))
    assert two_cards.gpu_hours == pytest.approx(200 / 3600)


def test_prompts_on_a_replica_are_prefilled_one_after_the_other() -> None:
    # The first tokens come at 1.5 and 2.0 s.
    assert missed(trace(1.0, 1.0), target_s=0.95) == 1
    assert missed(trace(1.0, 1.0), target_s=1.05) == 0


def test_a_request_that_finds_no_slot_waits_for_one() -> None:
    # Both prompts are done at 2 s; meanwhile the first request decoded a token. Its other 94 take 9.4 s. The third has
    # its first token 0.5 s later, at 11.9 s.
    assert missed(trace(1.0, 1.0, 2.0), target_s=9.85) == 1
    assert missed(trace(1.0, 1.0, 2.0), target_s=9.95) == 0


def test_a_prompt_of_several_chunks_lets_others_decode_a_token_in_each() -> None:
    # As before, but the first has decoded 5 tokens at 2 s, and the third begins at 11.0 s.
    chunked = replace(PLAIN, batched_tokens=1)
    traffic = trace(1.0, 1.0, 2.0, prompt=5.0)
    assert run(traffic, always(1), target_s=9.45, hardware=chunked).missed == 1
    assert run(traffic, always(1), target_s=9.55, hardware=chunked).missed == 0


def test_a_prompt_shorter_than_a_step_gives_the_others_no_token_sooner() -> None:
    # The prompts are done at 1.02 and 1.04 s. The first request's other 95 tokens take 9.5 s all the same; the third
    # has its first token at 10.54 s.
    short = replace(PLAIN, prompts_s=((1.0, 0.02), (1000.0, 0.02)))
    traffic = trace(1.0, 1.0, 2.0)
    assert run(traffic, always(1), target_s=8.53, hardware=short).missed == 1
    assert run(traffic, always(1), target_s=8.55, hardware=short).missed == 0


def test_steps_take_longer_with_a_larger_batch() -> None:
    # From 2 s on both decode at 0.2 s a token: the first ends 94 tokens later, at 20.8 s, the second at 20.9 s.
    slower = replace(PLAIN, pass_s=(0.1, 0.1, 0.2))
    assert seen(trace(1.0, 1.0), slower)[21].service_s == pytest.approx((19.8 + 19.9) / 2)


def test_steps_take_longer_with_longer_contexts_and_at_least_the_hosts_time() -> None:
    # 1 + 96 / 2 tokens in the mean: 0.149 s a step.
    reads = replace(PLAIN, kv_s=0.001)
    assert seen(trace(1.0), reads)[17].service_s == pytest.approx(0.5 + 95 * 0.149)
    host = replace(PLAIN, host_s=(0.0, 0.15, 0.15))
    assert seen(trace(1.0), host)[17].service_s == pytest.approx(0.5 + 95 * 0.15)


def test_a_request_that_never_begins_is_missed() -> None:
    assert run(trace(1.0, 1.0, 2.0, duration_s=5.0), always(1), target_s=1.1).missed == 1


def test_requests_before_the_count_and_those_too_late_to_be_missed_are_not_counted() -> None:
    outcome = run(trace(1.0, 1.0, 1.0, 30.0, 99.5), always(1), counted_from_s=25.0)
    assert (outcome.requests, outcome.missed) == (1, 0)
    assert outcome.gpu_hours == pytest.approx(75 / 3600)


def test_refusing_a_request_that_would_be_late_leaves_time_for_the_next() -> None:
    # The second would have its first token at 2.0 s. Without it the third has its at 2.0 s instead of 2.5 s.
    three = replace(PLAIN, slots=3, host_s=(0.0,) * 4, pass_s=(0.1,) * 4)
    for admission, late in ((False, 2), (True, 1)):
        traffic = trace(1.0, 1.0, 1.4)
        assert run(traffic, always(1), target_s=0.9, hardware=three, admission=admission).missed == late


def test_a_queued_request_is_refused_once_it_is_late_and_the_next_one_takes_its_slot() -> None:
    # The slots are free again from 11.4 s on: too late for the third, not for the fourth.
    assert missed(trace(1.0, 1.0, 2.0, 11.0), target_s=2.0) == 1
    assert missed(trace(1.0, 1.0, 2.0, 11.0), target_s=0.95) == 3
    assert missed(trace(1.0, 1.4, 2.0, 11.0), target_s=0.95, admission=True) == 1


def test_a_replica_costs_from_its_request_and_serves_after_its_cold_start() -> None:
    outcome = run(trace(30.0, 30.0, 30.0, 30.0), lambda snapshot: 1 if snapshot.now_s < 10 else 2, target_s=1.1)
    assert (outcome.missed, outcome.scale_actions, outcome.most_replicas) == (0, 1, 2)
    assert outcome.gpu_hours == pytest.approx((100 + 90) / 3600)
    late = run(trace(12.0, 12.0, 12.0, 12.0), lambda snapshot: 1 if snapshot.now_s < 10 else 2, target_s=1.1)
    assert late.missed == 2


def test_a_removed_replica_finishes_its_requests_and_takes_no_new_ones() -> None:
    # Both replicas have a request that ends at 11 s, and one is removed at 5 s: it costs until then.
    def fewer(snapshot: Snapshot) -> int:
        return 2 if snapshot.now_s < 5 else 1

    outcome = run(trace(1.0, 1.0), fewer, initial=2)
    assert outcome.missed == 0
    assert outcome.gpu_hours == pytest.approx((100 + 11) / 3600)
    # Of two more requests the second finds one replica without a free slot.
    assert run(trace(1.0, 1.0, 6.0, 6.0), fewer, initial=2).missed == 1


def test_starting_replicas_are_removed_first() -> None:
    outcome = run(trace(50.0), lambda snapshot: 2 if snapshot.now_s == 20 else 1)
    assert outcome.gpu_hours == pytest.approx((100 + 1) / 3600)
    assert outcome.scale_actions == 2


def test_prompts_that_come_by_chance_wait_as_queueing_theory_says() -> None:
    # M/D/1 at 60% load: an arrival finds the server idle, and has its first token at once, with probability 0.4.
    rng = np.random.default_rng(1)
    arrivals_s = np.cumsum(rng.exponential(0.5 / 0.6, 4000))
    only_prompts = Trace("t", arrivals_s, np.ones(4000), np.ones(4000), float(np.ceil(arrivals_s[-1])))
    assert run(only_prompts, always(1), target_s=0.5001).miss_share == pytest.approx(0.6, abs=0.04)


def test_a_tier_may_have_more_replicas_than_at_the_beginning_and_reuses_the_places_of_those_that_went() -> None:
    outcome = run(
        trace(*[float(second) for second in range(1, 90)]), lambda snapshot: 9 if snapshot.now_s % 40 < 20 else 1
    )
    # 9 in 3 periods of 20 s, which begin and end with the one that stays; no request lasts beyond 10.5 s.
    assert outcome.most_replicas == 9
    assert (100 + 8 * 60) / 3600 <= outcome.gpu_hours <= (100 + 8 * 60 + 8 * 2 * 10.5) / 3600


def test_a_policy_sees_the_queue_the_work_and_the_waits() -> None:
    snapshots = seen(trace(1.0, 1.0, 2.0))
    assert (snapshots[3].engine_running, snapshots[3].queued, snapshots[3].running) == (2, 1, 1)
    assert snapshots[12].queue_wait_s == pytest.approx(9.4)  # that of the third; the others' are over 10 s old
    # The second decodes its last token while the third's prompt is prefilled, until 11.9 s.
    assert snapshots[12].service_s == pytest.approx((10.4 + 10.9) / 2)


def test_a_policy_sees_the_requests_that_wait_for_anothers_prefill() -> None:
    slow = replace(PLAIN, prompts_s=((1.0, 3.0), (2.0, 3.0)))
    snapshot = seen(trace(1.5, 1.5), slow)[2]
    assert (snapshot.engine_running, snapshot.engine_waiting, snapshot.in_engines) == (1, 1, 2)


def test_waits_for_a_replica_that_starts_are_not_reported() -> None:
    assert max(snapshot.queue_wait_s for snapshot in seen(trace(1.0), initial=0)) == 0
