"""The pool's metrics: the state of each tier."""

from __future__ import annotations

from cluster.observability import series
from cluster.observability.meter import Meter
from router.observation import Observation, TierState
from router.registry import Profile, Tier


def publish_tiers(meter: Meter, profile: Profile, observation: Observation) -> None:
    """Set the gauges of all tiers."""
    for name, tier in profile.tiers.items():
        state, tags = observation.tier(name), {"tier": name}
        for which, replicas in (("running", state.running), ("starting", state.starting), ("pending", state.pending)):
            meter.set(series.TIER_REPLICAS, replicas, tags | {"state": which})
        for which, requests in (("running", state.engine_running), ("waiting", state.engine_waiting)):
            meter.set(series.TIER_REQUESTS, requests, tags | {"state": which})
        meter.set(series.TIER_FAILED, float(state.failed), tags)
        meter.set(series.CHAIN_POSITION, entries_left(tier, state), tags)
        meter.set(series.QUEUE_WAIT, state.queue_wait_ms / 1000, tags)


def entries_left(tier: Tier, state: TierState) -> int:
    """Return how many entries of the chain come before the one that runs; 0 while none runs."""
    names = [entry.name for entry in tier.chain]
    return names.index(state.active_entry) if state.active_entry in names else 0
