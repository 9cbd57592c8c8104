"""Only a start that went well predicts the next one."""

from __future__ import annotations

import pytest

from cluster.pool.cold_starts import NEWEST, ColdStarts

EXPECTED_S = 120.0


class Tier:
    """The eco tier, second by second."""

    def __init__(self) -> None:
        self.starts = ColdStarts()
        self.now_s = 5000.0

    def passes(self, seconds: int, *, running: int = 0, starting: int = 0, possible: bool = True) -> Tier:
        for _ in range(seconds):
            self.refresh(running=running, starting=starting, possible=possible)
            self.now_s += 1
        return self

    def refresh(self, *, running: int = 0, starting: int = 0, possible: bool = True) -> Tier:
        self.starts.refresh(
            "eco", running=running, starting=starting, possible=possible, expected_s=EXPECTED_S, now_s=self.now_s
        )
        return self

    def loads(self, replica: str = "a") -> Tier:
        self.starts.replica_loading("eco", replica, self.now_s)
        return self

    def fails(self) -> Tier:
        self.starts.replica_failed("eco")
        return self

    def starts_in(self, place_s: int, load_s: int) -> Tier:
        return self.passes(place_s, starting=1).loads().passes(load_s, starting=1).passes(1, running=1).passes(60)

    @property
    def learned_s(self) -> float | None:
        return self.starts.learned_s.get("eco")


def test_before_any_start_nothing_is_learned() -> None:
    assert Tier().passes(100).learned_s is None


def test_the_time_in_which_the_autoscaler_brings_a_node_is_part_of_a_start() -> None:
    assert Tier().starts_in(place_s=90, load_s=40).learned_s == 130


def test_a_start_that_never_gets_a_gpu_teaches_nothing() -> None:
    assert Tier().passes(1500, starting=1).passes(100).learned_s is None


def test_waiting_for_a_node_counts_at_most_what_the_profile_expects() -> None:
    assert Tier().starts_in(place_s=1500, load_s=40).learned_s == EXPECTED_S + 40


def test_waiting_does_not_count_while_the_cluster_can_have_no_place() -> None:
    tier = Tier().passes(600, starting=1, possible=False).passes(30, starting=1)
    assert tier.loads().passes(40, starting=1).refresh(running=1).learned_s == 71


def test_a_long_load_counts_in_full() -> None:
    assert Tier().starts_in(place_s=5, load_s=600).learned_s == 605


def test_a_start_with_a_failed_attempt_teaches_nothing_and_the_next_one_does() -> None:
    tier = Tier().passes(5, starting=1).loads("a").passes(60, starting=1).fails().passes(30, starting=1)
    tier.loads("b").passes(60, starting=1).passes(10, running=1).passes(60)
    assert tier.learned_s is None
    assert tier.starts_in(place_s=5, load_s=60).learned_s == 65


def test_a_replica_that_died_silently_and_was_replaced_is_a_failed_attempt() -> None:
    tier = Tier().passes(5, starting=1).loads("a").passes(200, starting=1).loads("b").passes(60, starting=1)
    assert tier.refresh(running=1).learned_s is None


def test_several_replicas_that_start_together_are_no_failed_attempts() -> None:
    tier = Tier().passes(5, starting=3)
    for replica in "abc":
        tier.loads(replica)
    assert tier.passes(40, starting=3).refresh(running=1, starting=2).learned_s == 45


def test_another_replica_of_a_warm_tier_is_no_cold_start() -> None:
    tier = Tier().passes(10, running=1).loads("b").passes(300, running=1, starting=1).passes(10, running=2)
    assert tier.learned_s is None


def test_an_abandoned_start_does_not_count_into_the_next_one() -> None:
    assert Tier().passes(500, starting=1).passes(100).starts_in(place_s=10, load_s=20).learned_s == 30


def test_a_start_that_no_replica_reported_is_measured_by_the_refreshes() -> None:
    assert Tier().passes(30, starting=1).refresh(running=1).learned_s == pytest.approx(30, abs=1)


def test_the_newest_starts_are_averaged() -> None:
    tier = Tier()
    for load_s in (500, 10, 20, 30):
        tier.starts_in(place_s=0, load_s=load_s)
    assert NEWEST == 3
    assert tier.learned_s == 20


def test_each_tier_is_learned_separately() -> None:
    tier = Tier().starts_in(place_s=10, load_s=20)
    assert set(tier.starts.learned_s) == {"eco"}
