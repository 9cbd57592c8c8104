"""The scaling policy: wakes at once, keeps the share of misses at the least cost, keeps its bounds, goes to zero."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from math import isfinite
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.autoscaling import (
    DAY_PARTS,
    DAY_S,
    FOLLOWS,
    LEARN_S,
    LEVEL,
    MEANS_S,
    NEAR,
    ROOM,
    SHARES,
    USABLE,
    Decision,
    DemandPolicy,
    Memory,
    Reason,
    ScalingRules,
    ScalingSettings,
    Signals,
    Speed,
    Trial,
    choice,
    decide,
    replicas_wanted,
    throughput,
)

SLOTS = 8
SERVICE_S = 4.0
PER_S = SLOTS / SERVICE_S
"""What a replica can take per second."""
RULES = ScalingRules(
    slots=SLOTS, min_replicas=0, max_replicas=20, cold_start_s=10.0, idle_s=30.0, settings=ScalingSettings()
)


@dataclass
class Tier:
    """A small tier: every request takes `SERVICE_S`, and the policy decides every second."""

    rules: ScalingRules = RULES
    cold_start_s: float = 10.0
    now_s: float = 0.0
    target: int = 0
    running: int = 0
    due: list[float] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    scaled_out_s: float | None = None
    idle_s: float = 0.0
    queued: float = 0.0
    ends: deque[tuple[float, float]] = field(default_factory=deque)
    """(when they end, how many)."""
    late: float = 0.0
    came: float = 0.0
    replica_s: float = 0.0
    actions: list[tuple[float, int, int]] = field(default_factory=list)
    """(time, before, after)."""

    def step(self, requests: float, **over: Any) -> Decision:
        """Advance a second in which so many requests come: they take the free slots, the others wait."""
        self.now_s += 1
        self.running += sum(due <= self.now_s for due in self.due)
        self.due = [due for due in self.due if due > self.now_s]
        while self.ends and self.ends[0][0] <= self.now_s:
            self.ends.popleft()
        busy = sum(count for _, count in self.ends)
        self.queued += requests
        taken = max(0.0, min(self.queued, self.running * SLOTS - busy))
        self.queued -= taken
        if taken:
            self.ends.append((self.now_s + SERVICE_S, taken))
        in_tier = self.queued + busy + taken
        self.idle_s = 0.0 if in_tier else self.idle_s + 1
        self.came += requests
        self.late += requests if self.queued > PER_S * self.running else 0.0
        self.replica_s += self.target
        seen = Signals(
            now_s=self.now_s,
            target=self.target,
            running=self.running,
            scaled_out_s=self.scaled_out_s,
            queued=self.queued,
            taken_per_s=taken,
            engine_running=busy + taken,
            service_s=SERVICE_S if self.now_s > SERVICE_S else 0.0,
            idle_s=self.idle_s,
        )
        decision = decide(replace(seen, **over), self.memory, self.rules)
        self.memory = decision.memory
        if decision.target != self.target:
            self.actions.append((self.now_s, self.target, decision.target))
            if decision.target > self.target:
                self.scaled_out_s = self.now_s
                self.due += [self.now_s + self.cold_start_s] * (decision.target - self.target)
            else:
                taken_away = self.target - decision.target
                starting = min(taken_away, len(self.due))
                self.due = self.due[: len(self.due) - starting]
                self.running -= taken_away - starting
            self.target = decision.target
        return decision

    def run(self, requests: Sequence[float]) -> Decision:
        for count in requests:
            decision = self.step(count)
        return decision


def with_all(rules: ScalingRules = RULES) -> Tier:
    """Return a tier that begins with all its replicas."""
    return Tier(rules, target=rules.max_replicas, running=rules.max_replicas)


def settled(per_s: float = 1.0) -> Tier:
    """Return a tier with one replica that has taken so many requests per second for a while."""
    return deepcopy(_settled(per_s))


@cache
def _settled(per_s: float) -> Tier:
    tier = Tier()
    tier.run([per_s] * 800)
    assert (tier.target, tier.running) == (1, 1)
    return tier


def with_settings(**over: float) -> ScalingRules:
    return replace(RULES, settings=ScalingSettings(**over))


def bursts(seed: int, seconds: int, height: float = 20.0) -> list[float]:
    """Return requests by second: two a second, and every minute or so a burst of some seconds."""
    rng, level = Random(seed), [2.0] * seconds
    start = 0.0
    while (start := start + rng.expovariate(1 / 60)) < seconds:
        for second in range(int(start), min(seconds, int(start + rng.uniform(2, 8)))):
            level[second] += height
    return level


def test_a_tier_without_a_request_has_no_replica() -> None:
    tier = Tier()
    assert tier.run([0.0] * 50).target == 0
    assert tier.actions == []


def test_the_first_request_wakes_a_tier_at_once() -> None:
    decision = Tier().step(1.0)
    assert (decision.target, decision.reason) == (1, Reason.WAKE)


def test_many_requests_that_wake_a_tier_get_their_replicas_as_soon_as_the_first_one_runs() -> None:
    tier = Tier()
    # Serve wakes the tier with one replica and calls the policy when that runs; no request has ended yet.
    tier.target, tier.running, tier.scaled_out_s, tier.now_s = 1, 1, 0.0, 1.0
    assert tier.step(4.0 * SLOTS).target >= 4


@pytest.mark.parametrize("every_s", [7, 25])
def test_one_user_needs_one_replica(every_s: int) -> None:
    tier = Tier()
    tier.run([1.0 if second % every_s == 0 else 0.0 for second in range(900)])
    assert max(after for _, _, after in tier.actions) == 1


def test_requests_that_come_together_and_find_free_slots_need_no_more_replicas() -> None:
    tier = Tier()
    tier.run([float(SLOTS) if second % 20 == 0 else 0.0 for second in range(1000)])
    # Eight every 20 s wait for nobody, though a replica takes only two a second when it is full.
    assert tier.target == 1


def test_steady_traffic_gets_what_it_needs_and_less_than_twice_as_much() -> None:
    tier = with_all()
    tier.run([10.0] * 1500)
    assert 10 / PER_S <= tier.target <= 2 * 10 / PER_S
    assert tier.late == 0


def test_replicas_that_were_there_before_stay_until_the_traffic_was_seen_for_a_while() -> None:
    tier = with_all()
    tier.run([1.0] * int(LEARN_S))
    assert tier.actions == []
    tier.run([1.0] * 200)
    assert tier.target < RULES.max_replicas


def test_bursts_that_end_before_a_replica_has_started_keep_room_for_the_next() -> None:
    tier = with_all()
    tier.run(bursts(1, 2500))
    before = tier.late
    tier.run(bursts(2, 1000))
    # In the mean they need two replicas; all at once eleven.
    assert tier.late - before <= 0.05 * sum(bursts(2, 1000))
    assert tier.target > 4


def test_a_share_that_may_miss_buys_fewer_replicas() -> None:
    def outcome(miss_share: float) -> tuple[float, float]:
        tier = with_all(with_settings(miss_share=miss_share))
        tier.run(bursts(3, 1500))
        return tier.late / tier.came, tier.replica_s

    strict, usual, lax = outcome(0.001), outcome(0.05), outcome(0.5)
    assert strict[0] <= usual[0] <= lax[0]
    assert strict[1] > usual[1] > lax[1]


def test_what_may_be_spent_bounds_the_room() -> None:
    tier = with_all(with_settings(miss_share=0.0, most_spend=2.0))
    tier.run(bursts(4, 1200))
    free = with_all(with_settings(miss_share=0.0, most_spend=100.0))
    free.run(bursts(4, 1200))
    mean = sum(bursts(4, 1200)) / 1200 / PER_S
    assert tier.target <= 3 * mean
    assert free.target > tier.target


def trial(missed: float, cost: float) -> Trial:
    """Return a trial of an hour with 1000 requests and a load of two replicas, in which every rule did this."""
    size = len(ROOM)
    return Trial(
        missed=np.full((2, size), missed), cost=np.full(size, cost), requests=1000.0, load=7200.0, seen_s=3600.0
    )


def changed(before: Trial, rule: int, missed: float, cost: float, larger: float | None = None) -> Trial:
    by_missed, by_cost = before.missed.copy(), before.cost.copy()
    by_missed[:, rule], by_cost[rule] = missed, cost
    if larger is not None:
        by_missed[1, rule] = larger
    return replace(before, missed=by_missed, cost=by_cost)


def test_the_cheapest_rule_that_keeps_the_share_is_chosen() -> None:
    rules = changed(changed(trial(0.0, 9000.0), 5, 10.0, 8000.0), 6, 11.0, 7300.0)
    assert choice(rules, with_settings(miss_share=0.01), 0.0) == 5
    assert choice(rules, with_settings(miss_share=0.011), 0.0) == 6


def test_of_rules_that_cost_nearly_the_same_the_one_that_stands_more_traffic_is_chosen() -> None:
    rules = changed(changed(trial(0.0, 9000.0), 5, 0.0, 8000.0, larger=100.0), 6, 0.0, 8100.0, larger=20.0)
    assert choice(rules, RULES, 0.0) == 6
    dearer = changed(rules, 6, 0.0, 8500.0, larger=20.0)
    assert choice(dearer, RULES, 0.0) == 5


def test_without_a_rule_that_keeps_the_share_the_one_that_misses_least_is_chosen() -> None:
    rules = changed(changed(trial(300.0, 8000.0), 7, 200.0, 9000.0), 8, 200.0, 8900.0)
    assert choice(rules, with_settings(miss_share=0.01), 0.0) == 8


def test_rules_that_cost_more_than_may_be_spent_are_left_out_unless_all_do() -> None:
    rules = changed(trial(300.0, 8000.0), 7, 0.0, 20_000.0)
    assert choice(rules, with_settings(most_spend=3.0), 0.0) == 7
    assert choice(rules, with_settings(most_spend=2.0), 0.0) != 7
    assert choice(changed(trial(0.0, 9000.0), 3, 500.0, 8000.0), with_settings(most_spend=1.0), 0.0) == 3


def test_room_for_a_burst_that_was_not_seen_is_bought_where_few_may_miss() -> None:
    # Two replicas of load; a rule that keeps nine has room for a burst to four times that, one that keeps two has not.
    rules = changed(trial(0.0, 7200.0), 4, 0.0, 9 * 3600.0)
    assert choice(rules, with_settings(miss_share=0.02), 20.0) == 4
    # A fifth of 20 x (8 - 1.8) requests is 2.5% of the thousand.
    assert choice(rules, with_settings(miss_share=0.03), 20.0) != 4


def test_no_room_is_bought_for_what_all_replicas_together_could_not_take() -> None:
    """The burst would need eight, and the tier has three at most: two miss a fifth of 20 x (2.7 - 1.8), 0.36%."""
    rules = changed(trial(0.0, 7200.0), 4, 0.0, 3 * 3600.0)
    assert choice(rules, replace(with_settings(miss_share=0.004), max_replicas=3), 20.0) != 4
    assert choice(rules, replace(with_settings(miss_share=0.003), max_replicas=3), 20.0) == 4


@given(shares=st.tuples(st.floats(0, 1), st.floats(0, 1)), seed=st.integers(0, 10**6))
def test_a_larger_share_never_chooses_a_clearly_dearer_rule(shares: tuple[float, float], seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = len(ROOM)
    tried = replace(trial(0.0, 0.0), missed=rng.uniform(0, 1000, (2, size)), cost=rng.uniform(3600, 20_000, size))
    strict, lax = (choice(tried, with_settings(miss_share=share), 0.0) for share in sorted(shares))
    missed = tried.missed[0]
    # Where the stricter one cannot be kept, the rule that misses least may cost anything.
    if missed[strict] / 1000 <= min(shares):
        assert tried.cost[lax] <= NEAR * tried.cost[strict]
    assert missed[lax] / 1000 <= max(max(shares), missed.min() / 1000)


def test_a_load_step_is_followed_within_some_seconds() -> None:
    tier = settled()
    tier.run([8.0] * 15)
    assert tier.target * PER_S >= 8
    tier.run([8.0] * 30)
    assert tier.running * PER_S >= 8


def test_requests_that_wait_for_starting_replicas_cause_no_endless_scale_out() -> None:
    tier = Tier(cold_start_s=100.0, rules=replace(RULES, cold_start_s=100.0))
    tier.run([5.0] + [0.0] * 90)
    assert tier.actions == [(1.0, 0, 1)]


def test_full_kv_caches_scale_out_before_the_slots_are_full() -> None:
    decision = settled().step(1.0, kv_usage=0.98)
    assert (decision.target, decision.needed, decision.reason) == (2, 2, Reason.KV_CACHE)


def test_the_maximum_is_kept_and_given_as_the_reason() -> None:
    decision = Tier(rules=replace(RULES, max_replicas=2)).step(400.0)
    assert (decision.target, decision.reason) == (2, Reason.BOUNDED)


def test_an_idle_tier_goes_to_zero_after_its_idle_time_and_not_before() -> None:
    tier = settled()
    left_s = tier.now_s + SERVICE_S
    tier.run([0.0] * 200)
    assert tier.target == 0
    when_s, before, after = tier.actions[-1]
    assert (before, after) == (1, 0)
    assert RULES.idle_s - 2 <= when_s - left_s <= RULES.idle_s + 2


def test_the_minimum_is_kept() -> None:
    tier = Tier(rules=replace(RULES, min_replicas=1))
    tier.run([0.0] * 200)
    assert tier.target == 1


def test_cold_starts_are_measured_from_requested_to_running() -> None:
    tier = Tier(cold_start_s=25.0)
    assert tier.run([5.0] + [0.0] * 26).cold_start_s == 25.0


@pytest.mark.parametrize(("took_s", "counts_as_s"), [(25.0, 25.0), (1500.0, 40.0)])
def test_a_start_that_waited_for_a_missing_node_counts_only_in_part(took_s: float, counts_as_s: float) -> None:
    """The rules expect 10 s. As a cold start, 25 minutes would keep a replica for as long after its last request."""
    signals = Signals(now_s=2000.0, target=1, running=1, scaled_out_s=2000.0 - took_s)
    assert decide(signals, Memory(decided_s=1999.0), RULES).cold_start_s == counts_as_s


def test_starts_that_always_take_long_are_learned_after_a_few() -> None:
    memory = Memory(decided_s=0.0)
    for now_s in range(1000, 20_000, 1000):
        decision = decide(Signals(now_s=float(now_s), target=1, running=1, scaled_out_s=now_s - 200.0), memory, RULES)
        memory = decision.memory
    assert decision.cold_start_s == pytest.approx(200.0, rel=0.05)


def test_a_replica_that_is_not_needed_stays_for_a_cold_start() -> None:
    tier = with_all(replace(RULES, cold_start_s=60.0))
    tier.run([20.0] * 700)
    left_s = tier.now_s
    tier.run([1.0] * 300)
    assert all(when_s - left_s >= 60 for when_s, _, _ in tier.actions if when_s > left_s)


def seen(*samples: tuple[float, float, float, float]) -> Speed:
    """Return what was seen: requests, how many a replica ran meanwhile, and their service and prompt times, s."""
    columns = np.array(samples)
    requests, running, service_s, prompt_s = columns.T
    return Speed(
        requests=float(requests.sum()),
        running=float(requests @ running),
        running_squared=float(requests @ running**2),
        service_s=float(requests @ service_s),
        service_squared=float(requests @ service_s**2),
        running_service=float(requests @ (running * service_s)),
        prompt_s=float(requests @ prompt_s),
        running_prompt=float(requests @ (running * prompt_s)),
    )


def test_nothing_is_known_of_a_replica_before_requests_have_ended() -> None:
    assert throughput(Speed(), SLOTS) is None


def test_service_times_at_several_loads_tell_what_full_slots_take() -> None:
    """A request takes 2 s, and 0.25 s more for each that runs: 4 s with all eight."""
    can = throughput(seen((5000, 2, 2.5, 0.0), (5000, 7, 3.75, 0.0)), SLOTS)
    assert can is not None
    assert can.per_s == pytest.approx(SLOTS / 4.0, rel=0.02)


def test_prompts_that_are_read_one_after_the_other_bound_a_replica_whose_slots_are_free() -> None:
    """A prompt takes 0.8 s: at most 1.25 a second, though eight slots of 2 s would take four."""
    can = throughput(seen((5000, 1, 2.0, 0.8), (5000, 2, 2.0, 0.8)), SLOTS)
    assert can is not None
    assert can.per_s == pytest.approx(1.25, rel=0.02)


def test_prompts_that_take_longer_beside_other_requests_bound_it_earlier() -> None:
    """A prompt takes 0.2 s and 0.1 s for each that runs: r (0.2 + 0.1 x 2 r) = 1 at r = 1.79."""
    can = throughput(seen((5000, 1, 2.0, 0.3), (5000, 3, 2.0, 0.5)), SLOTS)
    assert can is not None
    assert can.per_s == pytest.approx(1.79, rel=0.03)


def test_a_replica_that_was_only_seen_nearly_empty_is_expected_to_get_slower() -> None:
    can = throughput(seen((5000, 1, 2.0, 0.0)), SLOTS)
    assert can is not None
    assert SLOTS / (2.0 * 6) < can.per_s < SLOTS / 2.0


def test_the_policy_measures_what_an_engine_takes_that_reads_prompts_one_after_the_other() -> None:
    """A prompt takes 1 s here, and the eight slots would end two requests a second."""
    memory = Memory()
    for second in range(600):
        rate = 0.8 if second % 60 < 30 else 0.4
        signals = Signals(
            now_s=float(second),
            target=2,
            running=2,
            taken_per_s=2 * rate,
            prompts=rate,
            engine_running=2 * rate * SERVICE_S,
            service_s=SERVICE_S,
        )
        memory = decide(signals, memory, replace(RULES, max_replicas=2)).memory
    can = throughput(memory.speed, SLOTS)
    assert can is not None
    assert can.per_s == pytest.approx(1.0, rel=0.1)


def test_a_growing_load_is_followed_ahead() -> None:
    trend = (len(MEANS_S) == LEVEL) & (ROOM == 1.0) & (FOLLOWS == 0)
    tier = with_all()
    tier.run([4 + 0.02 * second for second in range(900)])
    [wanted] = replicas_wanted(tier.memory, tier.now_s, 100.0, PER_S, RULES)[trend]
    # It grows by 0.02 a second, so it will have grown by two when a replica that starts now is ready.
    assert wanted == pytest.approx((4 + 0.02 * (900 + 100)) / (USABLE * PER_S), abs=1.5)


def test_the_load_of_this_time_yesterday_is_a_level_from_the_second_day_on() -> None:
    of_day = (len(MEANS_S) + 1 == LEVEL) & (ROOM == 1.0) & (FOLLOWS == 0)
    part_s = DAY_S / DAY_PARTS

    def wanted(parts: int) -> float:
        memory = Memory()
        for part in range(parts):
            rate = 20.0 if part % DAY_PARTS == 100 else 2.0
            memory = replace(memory, day_part=memory.day_part, decided_s=part * part_s - 1)
            for now_s in (part * part_s, part * part_s + part_s / 2):
                # Enough for the five-minute mean.
                memory = replace(memory, levels=(rate,) * len(MEANS_S), weights=(1.0,) * len(MEANS_S))
                signals = Signals(now_s, 20, 20, taken_per_s=rate, engine_running=rate, service_s=SERVICE_S)
                memory = decide(signals, memory, RULES).memory
        # The next part begins.
        [replicas] = replicas_wanted(memory, parts * part_s, 10.0, PER_S, RULES)[of_day]
        return float(replicas)

    assert wanted(100) == 1.0
    assert wanted(DAY_PARTS + 100) >= 10
    assert wanted(DAY_PARTS + 110) < 5


def test_there_are_rules_that_always_keep_a_share_of_the_replicas() -> None:
    all_replicas = LEVEL.max() == LEVEL
    wanted = replicas_wanted(Memory(), 0.0, 10.0, PER_S, RULES)[all_replicas & (FOLLOWS == 0)]
    assert wanted.tolist() == [share * RULES.max_replicas for share in SHARES]


def test_a_decision_comes_with_the_signals_that_led_to_it() -> None:
    decision = settled().step(1.0)
    assert decision.signals.taken_per_s == 1.0
    assert decision.offered_load == pytest.approx(SERVICE_S)
    assert (decision.needed, decision.held, decision.reason) == (1, 1, Reason.STEADY)
    assert decision.rule is not None


loads = st.lists(st.tuples(st.floats(0, 40), st.integers(1, 60)), min_size=1, max_size=12)
"""Requests per second, and for how many seconds."""


@settings(max_examples=10)
@given(loads=loads, seed=st.integers(0, 10**6), cold_start_s=st.floats(1, 60))
def test_no_traffic_makes_it_leave_its_bounds_or_take_away_what_it_has_just_started(
    loads: list[tuple[float, int]], seed: int, cold_start_s: float
) -> None:
    tier, noise = Tier(cold_start_s=cold_start_s), Random(seed)
    for level, seconds in loads:
        for _ in range(seconds):
            decision = tier.step(max(0.0, level + noise.gauss(0, level**0.5)))
            assert 0 <= tier.target <= RULES.max_replicas
            assert isfinite(decision.offered_load)
            assert np.isfinite(decision.memory.trial.missed).all()
            assert np.isfinite(decision.memory.trial.cost).all()
    for (out_s, before, after), (in_s, _, later) in zip(tier.actions, tier.actions[1:], strict=False):
        if before < after and later < after:
            assert in_s - out_s >= min(decision.cold_start_s, RULES.cold_start_s, RULES.idle_s) - 1


@settings(max_examples=3)
@given(level=st.floats(1, 30))
def test_the_target_does_not_flap_under_steady_traffic(level: float) -> None:
    tier = Tier()
    tier.run([level] * 700)
    settled_s = tier.now_s
    tier.run([level] * 300)
    # The longer no burst comes, the less room is kept for one.
    assert all(after < before for when_s, before, after in tier.actions if when_s > settled_s)
    assert tier.running * PER_S >= level


def context(now_s: float, target: int, **over: Any) -> Any:
    """Return the context that Serve's controller passes."""
    given: dict[str, Any] = {
        "current_time": now_s,
        "target_num_replicas": target,
        "current_num_replicas": target,
        "last_scale_up_time": None,
        "total_queued_requests": 0.0,
        "raw_metrics": {},
        "capacity_adjusted_min_replicas": 0,
        "capacity_adjusted_max_replicas": 4,
    }
    return SimpleNamespace(**(given | over))


def series(*values: float) -> list[Any]:
    return [SimpleNamespace(timestamp=float(t), value=value) for t, value in enumerate(values)]


def policy() -> DemandPolicy:
    return DemandPolicy("eco", SLOTS, 10.0, 30.0, ScalingSettings().model_dump())


def test_the_policy_reads_the_newest_report_of_every_replica() -> None:
    metrics = {
        "engine_running": {"a": series(1, 8), "b": series(8)},
        "engine_waiting": {"a": series(9, 0), "b": series(6)},
        "service_s": {"a": series(0), "b": series(10)},
    }
    target, state = policy()(context(1.0, 2, raw_metrics=metrics, total_queued_requests=10.0))
    assert target > 2
    assert state == {}


def test_the_policy_decides_once_a_period() -> None:
    once = policy()
    busy = {"taken_per_s": {"a": series(2)}, "engine_running": {"a": series(8)}, "service_s": {"a": series(10)}}
    assert once(context(10.0, 1))[0] == 1
    assert once(context(10.5, 1, raw_metrics=busy, total_queued_requests=30.0))[0] == 1
    assert once(context(11.0, 1, raw_metrics=busy, total_queued_requests=30.0))[0] > 1


def test_a_replica_that_has_not_reported_counts_as_idle() -> None:
    assert policy()(context(1.0, 1, raw_metrics={"engine_running": {"a": []}}))[0] == 1


def test_the_bounds_are_those_of_serve() -> None:
    busy = {"taken_per_s": {"a": series(2)}, "engine_running": {"a": series(8)}, "service_s": {"a": series(10)}}
    flooded = context(1.0, 1, raw_metrics=busy, total_queued_requests=500.0)
    assert policy()(flooded)[0] == 4


def test_serve_can_send_the_policy_to_a_controller_that_has_none_of_this_code(tmp_path: Path) -> None:
    from ray.serve.config import AutoscalingPolicy

    kwargs = {"tier": "eco", "slots": 8, "cold_start_s": 10.0, "idle_s": 30.0, "settings": {}}
    made = AutoscalingPolicy(policy_function=DemandPolicy, policy_kwargs=kwargs)
    (tmp_path / "policy.bin").write_bytes(made.get_serialized_policy_def() or b"")
    code = (
        "from ray import cloudpickle; import pathlib, sys\n"
        "policy = cloudpickle.loads(pathlib.Path('policy.bin').read_bytes())\n"
        f"policy(**{kwargs!r})\n"
        "assert 'cluster' not in sys.modules and 'router' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_woken_tier_keeps_its_idle_time_even_if_its_request_was_never_seen() -> None:
    tier = Tier()
    tier.run([0.0] * 500)
    # Serve wakes the tier itself, and calls the policy only when the replica runs.
    tier.target, tier.running, tier.scaled_out_s, tier.now_s = 1, 1, tier.now_s, tier.now_s + 10
    tier.idle_s = 0.0
    tier.run([0.0] * int(RULES.idle_s - 2))
    assert tier.target == 1
    tier.run([0.0] * 5)
    assert tier.target == 0
