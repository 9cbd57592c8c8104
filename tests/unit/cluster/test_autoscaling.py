"""The scaling policy: wakes at once, scales out within two periods, never flaps, keeps its bounds, goes to zero."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.autoscaling import (
    GROWTH_WINDOW_S,
    MOST_HEADROOM,
    Decision,
    Memory,
    QueueWaitPolicy,
    Reason,
    ScalingRules,
    ScalingSettings,
    Signals,
    decide,
    offered_load,
    significant_growth_per_s,
    slope,
)

SLOTS = 8
RULES = ScalingRules(
    slots=SLOTS, min_replicas=0, max_replicas=20, cold_start_s=10.0, idle_s=30.0, settings=ScalingSettings(hold_s=60.0)
)
HOLD_S = RULES.settings.hold_s


@dataclass
class Tier:
    """A small tier: replicas run `cold_start_s` after they were requested, and the policy decides every second."""

    rules: ScalingRules = RULES
    cold_start_s: float = 10.0
    now_s: float = 0.0
    target: int = 0
    running: int = 0
    due: list[float] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    scaled_out_s: float | None = None
    idle_s: float = 0.0
    actions: list[tuple[float, int, int]] = field(default_factory=list)
    """(time, before, after)."""

    def step(self, requests: float, **over: Any) -> Decision:
        """Advance a second with this many requests in the tier: as many as there are slots run, the others wait."""
        self.now_s += 1
        self.running += sum(due <= self.now_s for due in self.due)
        self.due = [due for due in self.due if due > self.now_s]
        self.idle_s = 0.0 if requests else self.idle_s + 1
        runs = min(requests, float(self.running * SLOTS))
        seen = Signals(
            now_s=self.now_s,
            target=self.target,
            running=self.running,
            scaled_out_s=self.scaled_out_s,
            queued=requests - runs,
            engine_running=runs,
            service_s=10.0,
            idle_s=0.0 if requests else self.idle_s,
        )
        decision = decide(replace(seen, **over), self.memory, self.rules)
        self.memory = decision.memory
        if decision.target != self.target:
            self.actions.append((self.now_s, self.target, decision.target))
            if decision.target > self.target:
                self.scaled_out_s = self.now_s
                self.due += [self.now_s + self.cold_start_s] * (decision.target - self.target)
            else:
                taken = self.target - decision.target
                starting = min(taken, len(self.due))
                self.due = self.due[: len(self.due) - starting]
                self.running -= taken - starting
            self.target = decision.target
        return decision

    def run(self, requests: Sequence[float]) -> Decision:
        for count in requests:
            decision = self.step(count)
        return decision


def settled(requests: float = 3.0) -> Tier:
    """Return a tier with one replica that has run this many requests for a while."""
    tier = Tier()
    tier.run([requests] * 100)
    assert (tier.target, tier.running) == (1, 1)
    return tier


def test_a_tier_without_a_request_has_no_replica() -> None:
    tier = Tier()
    assert tier.run([0.0] * 50).target == 0
    assert tier.actions == []


def test_the_first_request_wakes_a_tier_at_once() -> None:
    decision = Tier().step(1.0)
    assert (decision.target, decision.reason) == (1, Reason.WAKE)


def test_a_long_cold_start_is_not_load() -> None:
    tier = Tier(cold_start_s=300.0)
    tier.run([5.0] * 250)
    assert tier.actions == [(1.0, 0, 1)]


def test_requests_that_wait_for_starting_replicas_cause_no_second_scale_out() -> None:
    # A long wait counts as none while the replicas that answer it are starting.
    patient, waiting = settled(), settled()
    for _ in range(8):
        assert waiting.step(40.0, queue_wait_ms=9000.0).target == patient.step(40.0).target
    # 40 need five replicas, seven with headroom, and some more while they grow. Then the target stays.
    before = waiting.target
    waiting.run([40.0] * 5)
    assert waiting.target == before <= 15


def test_many_requests_that_wake_a_tier_get_their_replicas_as_soon_as_the_first_one_runs() -> None:
    tier = Tier()
    # Serve wakes the tier with one replica and calls the policy when that runs; no request has ended yet.
    tier.target, tier.running, tier.scaled_out_s, tier.now_s = 1, 1, 0.0, 10.0
    assert tier.step(4.0 * SLOTS, service_s=0.0).target >= 4


@pytest.mark.parametrize("times", [3, 8])
def test_a_load_step_scales_out_within_two_periods(times: int) -> None:
    tier = settled()
    tier.run([3.0 * times] * 2)
    assert tier.target * SLOTS >= 3 * times
    tier.run([3.0 * times] * 30)
    assert tier.running * SLOTS >= 3 * times


def test_a_lasting_queue_wait_although_all_replicas_run_adds_one() -> None:
    tier = settled()
    decisions = [tier.step(3.0, queue_wait_ms=400.0) for _ in range(3)]
    assert [(decision.target, decision.reason) for decision in decisions[1:]] == [
        (1, Reason.STEADY),
        (2, Reason.QUEUE_WAIT),
    ]


def test_a_momentary_queue_wait_adds_none() -> None:
    tier = settled()
    tier.step(3.0, queue_wait_ms=400.0)
    tier.run([3.0] * 10)
    assert tier.target == 1


def test_full_kv_caches_scale_out_before_the_slots_are_full() -> None:
    tier = settled(3.0)
    decision = tier.step(3.0, kv_usage=0.98)
    assert decision.target == 2
    assert decision.needed == 2


def test_the_maximum_is_kept_and_given_as_the_reason() -> None:
    tier = Tier(rules=replace(RULES, max_replicas=2))
    tier.run([6.0] * 30)
    decision = tier.run([400.0] * 5)
    assert (decision.target, decision.reason) == (2, Reason.BOUNDED)


def test_an_idle_tier_goes_to_zero_after_its_idle_time_and_not_before() -> None:
    tier = settled()
    left_s = tier.now_s
    tier.run([0.0] * 200)
    assert tier.target == 0
    [(when_s, before, after)] = tier.actions[1:]
    assert (before, after) == (1, 0)
    assert RULES.idle_s <= when_s - left_s <= RULES.idle_s + 2


def test_the_minimum_is_kept() -> None:
    tier = Tier(rules=replace(RULES, min_replicas=1))
    tier.run([0.0] * 200)
    assert tier.target == 1


def test_cold_starts_are_measured_from_requested_to_running() -> None:
    tier = Tier(cold_start_s=25.0)
    decision = tier.run([5.0] * 40)
    assert decision.cold_start_s == 25.0


def test_a_replica_goes_after_the_hold_window() -> None:
    tier = Tier()
    tier.run([30.0] * 200)
    many, left_s = tier.target, tier.now_s
    tier.run([3.0] * 600)
    [(when_s, before, after)] = [action for action in tier.actions if action[0] > left_s]
    assert (before, after) == (many, 1)
    assert HOLD_S <= when_s - left_s <= HOLD_S + 2


MANY = replace(RULES, max_replicas=10_000)


def test_steady_traffic_gets_the_least_headroom() -> None:
    decision = Tier(rules=MANY).run([8000.0] * 3000)
    assert decision.needed == 8000 * (1 + MANY.settings.headroom) / SLOTS


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


def test_headroom_covers_the_usual_change_within_a_cold_start() -> None:
    wave = [8000.0 + 40 * abs(second % 120 - 60) for second in range(3000)]
    tier = Tier(rules=MANY)
    tier.run(wave)
    decision = tier.run([8000.0] * 15)
    # It goes up and down by 2,400 in a minute: by up to a fifth from its mean of the half minute that ended 10 s ago.
    assert 0.1 < (tier.memory.deviation or 0) < 0.3
    assert decision.needed >= 8000 * (1 + MANY.settings.deviations * 0.1) / SLOTS


def test_occasional_bursts_do_not_count_as_usual_change() -> None:
    tier = Tier(rules=MANY)
    tier.run(([8000.0] * 1100 + [24_000.0] * 100) * 3)
    assert (tier.memory.deviation or 0) < 0.01
    # But the headroom covers one like them, within the recent peak.
    assert tier.run([8000.0] * 300).needed == pytest.approx(8000 * (1 + MOST_HEADROOM) / SLOTS, rel=0.1)


def test_headroom_covers_at_least_the_noise_of_poisson_traffic() -> None:
    # 64 requests, give or take 8.
    assert Tier().run([64.0] * 300).needed == ceil((64 + RULES.settings.deviations * 8) / SLOTS)


def test_a_ramp_is_followed_as_far_ahead_as_a_start_takes() -> None:
    def ahead(cold_start_s: float) -> float:
        tier = Tier(rules=replace(MANY, settings=ScalingSettings(headroom=1.0)), cold_start_s=cold_start_s)
        tier.run([8000.0] * 200)
        return tier.run([8000.0 + 50 * second for second in range(60)]).offered_load - 8000 - 50 * 59

    # It grows by 50 a second, of which chance explains three times 8.3 (10,200 requests of 10 s, for half a minute),
    # and over the last seven seconds three times 18: all of it.
    surely = 50 - 3 * (2 * 10_225 / (10 * 30)) ** 0.5
    assert ahead(40.0) == pytest.approx(40 * surely, rel=0.05)
    assert ahead(5.0) == pytest.approx(5 * surely, rel=0.05)


def test_a_decision_comes_with_the_signals_that_led_to_it() -> None:
    decision = settled().step(3.0)
    assert decision.signals.engine_running == 3.0
    assert decision.offered_load == pytest.approx(3.0)
    assert (decision.needed, decision.held, decision.reason) == (1, 1, Reason.STEADY)


loads = st.lists(st.tuples(st.floats(0, 120), st.integers(1, 60)), min_size=1, max_size=12)
"""Requests in the tier, and for how many seconds."""


@settings(max_examples=60, deadline=None)
@given(loads=loads, seed=st.integers(0, 10**6), cold_start_s=st.floats(1, 60))
def test_no_traffic_makes_it_flap_or_leave_its_bounds(
    loads: list[tuple[float, int]], seed: int, cold_start_s: float
) -> None:
    tier, noise = Tier(cold_start_s=cold_start_s), Random(seed)
    for level, seconds in loads:
        for _ in range(seconds):
            tier.step(max(0.0, level + noise.gauss(0, level**0.5)))
            assert 0 <= tier.target <= RULES.max_replicas
    for (out_s, before, after), (in_s, _, later) in zip(tier.actions, tier.actions[1:], strict=False):
        if before < after and later < after:
            assert in_s - out_s >= min(HOLD_S, RULES.idle_s)


@settings(max_examples=40, deadline=None)
@given(level=st.floats(1, 120))
def test_the_target_settles_under_steady_traffic(level: float) -> None:
    tier = Tier()
    tier.run([level] * 150)
    before = len(tier.actions)
    tier.run([level] * 300)
    assert len(tier.actions) == before
    assert tier.running * SLOTS >= level


@settings(max_examples=40, deadline=None)
@given(lower=st.floats(0, 100), more=st.floats(0, 60))
def test_more_load_never_needs_fewer_replicas(lower: float, more: float) -> None:
    def needed(requests: float) -> int:
        tier = Tier()
        return tier.run([requests] * 60).needed

    assert needed(lower) <= needed(lower + more)


def test_growth_counts_only_beyond_chance() -> None:
    # 100 requests of 2 s each: in 5 s 250 come and 250 go, give or take 22 together, 4.5 a second; three times that.
    steep = Memory(load=tuple((float(t), 90.0 + 20.0 * (t - 2)) for t in range(5)), service_s=2.0, cold_start_s=None)
    assert slope(steep.load) == pytest.approx(20.0)
    assert significant_growth_per_s(steep, 5.0) == pytest.approx(20.0 - 3 * (2 * 90 / (2 * 5)) ** 0.5)
    flat = replace(steep, load=tuple((float(t), 90.0 + 5.0 * t) for t in range(5)))
    assert significant_growth_per_s(flat, 5.0) == 0
    assert significant_growth_per_s(replace(steep, service_s=0.0), 5.0) == 0
    assert slope(((1.0, 2.0),)) == 0


def test_offered_load_is_littles_law() -> None:
    memory = Memory(load=tuple((float(t), 90.0 + 20.0 * (t - 2)) for t in range(5)), service_s=2.0)
    grows = significant_growth_per_s(memory, GROWTH_WINDOW_S)
    # 45 requests/s end after 2 s each, and so many more come every second than go.
    load = offered_load(Signals(4.0, 4, 4, engine_running=90.0), memory)
    assert load == pytest.approx((45 + grows) * 2)


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


def policy() -> QueueWaitPolicy:
    return QueueWaitPolicy("eco", SLOTS, 10.0, 30.0, ScalingSettings().model_dump())


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
    busy = {"engine_running": {"a": series(8)}, "service_s": {"a": series(10)}}
    assert once(context(10.0, 1))[0] == 1
    assert once(context(10.5, 1, raw_metrics=busy, total_queued_requests=30.0))[0] == 1
    assert once(context(11.0, 1, raw_metrics=busy, total_queued_requests=30.0))[0] > 1


def test_a_replica_that_has_not_reported_counts_as_idle() -> None:
    assert policy()(context(1.0, 1, raw_metrics={"engine_running": {"a": []}}))[0] == 1


def test_the_bounds_are_those_of_serve() -> None:
    busy = {"engine_running": {"a": series(8)}, "service_s": {"a": series(10)}}
    flooded = context(1.0, 1, raw_metrics=busy, total_queued_requests=500.0)
    assert policy()(flooded)[0] == 4


def test_serve_can_send_the_policy_to_a_controller_that_has_none_of_this_code(tmp_path: Path) -> None:
    from ray.serve.config import AutoscalingPolicy

    kwargs = {"tier": "eco", "slots": 8, "cold_start_s": 10.0, "idle_s": 30.0, "settings": {}}
    made = AutoscalingPolicy(policy_function=QueueWaitPolicy, policy_kwargs=kwargs)
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
