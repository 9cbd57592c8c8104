"""The pool's metrics show the state of every tier."""

from __future__ import annotations

from cluster.pool.tier_gauges import publish_tiers
from router.observation import Observation, TierState
from tests.support.recorded_meter import RecordedMeter
from tests.unit.router.profiles import small_profile


def test_every_tier_has_its_replicas_its_requests_and_whether_it_failed() -> None:
    meter = RecordedMeter()
    eco = TierState(running=2, starting=1, pending=3, engine_running=5, engine_waiting=4, queue_wait_ms=250.0)
    publish_tiers(meter, small_profile(), Observation({"eco": eco, "ultra": TierState(failed=True)}))
    gauges = meter.gauges
    replicas = gauges["power_lever_tier_replicas"]
    assert [replicas["eco", state] for state in ("running", "starting", "pending")] == [2, 1, 3]
    assert replicas["performance", "running"] == 0
    requests = gauges["power_lever_tier_requests"]
    assert [requests["eco", state] for state in ("running", "waiting")] == [5, 4]
    assert gauges["power_lever_tier_queue_wait_seconds"]["eco",] == 0.25
    failed = gauges["power_lever_tier_failed"]
    assert [failed[tier,] for tier in ("eco", "balanced", "performance", "ultra")] == [0, 0, 0, 1]


def test_a_tier_that_left_entries_of_its_chain_shows_how_many() -> None:
    profile = small_profile()
    [name, tier] = next((name, tier) for name, tier in profile.tiers.items() if len(tier.chain) > 1)
    for position, entry in enumerate(tier.chain):
        meter = RecordedMeter()
        publish_tiers(meter, profile, Observation({name: TierState(running=1, active_entry=entry.name)}))
        assert meter.gauges["power_lever_tier_chain_position"][name,] == position
    meter = RecordedMeter()
    publish_tiers(meter, profile, Observation({name: TierState()}))
    assert meter.gauges["power_lever_tier_chain_position"][name,] == 0
