"""Serve's router of requests to replicas, with turns: Serve's own code, and replicas that say how many they have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID, RequestMetadata
from ray.serve._private.request_router.common import PendingRequest

from serve_app.engine.interface import Resume, plain_request
from serve_app.fairness.claims import ANYBODY, Claim
from serve_app.transport.request_router import FairRequestRouter

TIER = DeploymentID("eco", "power-lever")
LARGE, SMALL, BATCH = Claim("large", cache_salt="large"), Claim("small"), Claim("large", batch=True)


class Replica:
    """Takes everything it is asked for."""

    def __init__(self, name: str, places: int) -> None:
        self.replica_id = ReplicaID(name, TIER)
        self.max_ongoing_requests = places
        self.node_id, self.availability_zone, self.multiplexed_model_ids = "node", None, set[str]()

    async def get_queue_len(self, *, deadline_s: float) -> int:
        return 0


class Waiting:
    """Sends requests through the router, and notes who got a replica."""

    def __init__(self, router: FairRequestRouter) -> None:
        self.router = router
        self.tasks: dict[str, asyncio.Task[Any]] = {}

    async def send(self, name: str, claim: Claim, *, resumes: bool = False, is_retry: bool = False) -> None:
        request = replace(plain_request(name, (), 1), claim=claim)
        if resumes:
            request = replace(request, resume=Resume("one", b"", b"1234", 1))
        metadata = RequestMetadata(request_id=name, internal_request_id=name)
        pending = PendingRequest([request, None], {}, metadata)
        choose = self.router._choose_replica_for_request
        self.tasks[name] = asyncio.ensure_future(choose(pending, is_retry=is_retry))
        await asyncio.sleep(0.01)

    @property
    def sent(self) -> list[str]:
        return [name for name, task in self.tasks.items() if task.done() and not task.cancelled()]

    async def end(self, name: str) -> None:
        replica = self.tasks[name].result()
        self.router.on_request_completed(replica.replica_id, name)
        await asyncio.sleep(0.01)


@pytest_asyncio.fixture
async def waiting() -> AsyncIterator[Waiting]:
    router = FairRequestRouter(
        deployment_id=TIER, handle_source=DeploymentHandleSource.REPLICA, use_replica_queue_len_cache=True
    )
    router.initialize_state(ingress_replicas=1)
    waiting = Waiting(router)
    yield waiting
    for task in waiting.tasks.values():
        task.cancel()
    await asyncio.gather(*waiting.tasks.values(), return_exceptions=True)


async def test_one_key_fills_its_part_of_the_places_and_another_ones_request_is_sent_at_once(waiting: Waiting) -> None:
    waiting.router.update_replicas([Replica("a", 8)])
    for number in range(10):
        await waiting.send(f"large {number}", LARGE)
    assert waiting.sent == [f"large {number}" for number in range(7)]
    await waiting.send("small", SMALL)
    assert "small" in waiting.sent


async def test_when_a_request_ends_the_next_one_goes_first_of_the_key_with_the_fewest(waiting: Waiting) -> None:
    waiting.router.update_replicas([Replica("a", 2)])
    for number in range(3):
        await waiting.send(f"large {number}", LARGE)
    await waiting.send("small 0", SMALL)
    await waiting.send("small 1", SMALL)
    assert waiting.sent == ["large 0", "small 0"]
    await waiting.end("small 0")
    assert waiting.sent == ["large 0", "small 0", "small 1"]
    await waiting.end("small 1")
    assert "large 1" not in waiting.sent  # the place that is left is kept
    await waiting.end("large 0")
    assert "large 1" in waiting.sent


async def test_requests_wait_for_the_first_replica_and_go_when_it_has_come(waiting: Waiting) -> None:
    await waiting.send("large", LARGE)
    await waiting.send("batch", BATCH)
    assert waiting.sent == []
    waiting.router.update_replicas([Replica("a", 8)])
    await asyncio.sleep(0.01)
    assert waiting.sent == ["large", "batch"]


async def test_a_client_that_leaves_gives_its_turn_away_before_and_after_it_has_it(waiting: Waiting) -> None:
    waiting.router.update_replicas([Replica("a", 2)])
    for number in range(4):
        await waiting.send(f"large {number}", LARGE)
    assert waiting.sent == ["large 0"]
    waiting.tasks["large 1"].cancel()
    waiting.router.on_request_completed(ReplicaID("a", TIER), "large 0")
    await asyncio.sleep(0.01)
    assert waiting.sent == ["large 0", "large 2"]
    await waiting.end("large 2")
    assert waiting.sent == ["large 0", "large 2", "large 3"]
    await waiting.end("large 3")
    assert waiting.router._turns.holders.all == 0


async def test_batch_requests_leave_a_quarter(waiting: Waiting) -> None:
    waiting.router.update_replicas([Replica("a", 4), Replica("b", 4)])
    for number in range(8):
        await waiting.send(str(number), BATCH)
    assert len(waiting.sent) == 6


@pytest.mark.parametrize("again", [{"is_retry": True}, {"resumes": True}], ids=["sent back", "resumed"])
async def test_a_request_that_had_its_turn_does_not_wait_for_another_one(
    waiting: Waiting, again: dict[str, bool]
) -> None:
    waiting.router.update_replicas([Replica("a", 8)])
    for number in range(8):
        await waiting.send(f"large {number}", LARGE)
    await waiting.send("again", LARGE, **again)
    assert "large 7" not in waiting.sent
    assert "again" in waiting.sent


async def test_a_request_that_a_replica_sent_back_frees_its_place_once_for_each_time_it_was_sent(
    waiting: Waiting,
) -> None:
    waiting.router.update_replicas([Replica("a", 8)])
    await waiting.send("one", LARGE)
    await waiting.send("one", LARGE, is_retry=True)
    assert waiting.router._turns.holders.all == 2
    for _ in range(3):  # once more than it was sent
        waiting.router.on_request_completed(ReplicaID("a", TIER), "one")
    assert waiting.router._turns.holders.all == 0
    assert waiting.router._sent == {}


async def test_what_runs_at_a_replica_that_drains_takes_no_place_of_those_that_remain(waiting: Waiting) -> None:
    waiting.router.update_replicas([Replica("a", 4)])
    for number in range(3):
        await waiting.send(f"large {number}", LARGE)
    waiting.router.update_replicas([Replica("b", 4)])
    for number in range(3):
        await waiting.send(f"new {number}", LARGE)
    assert waiting.sent == [*(f"large {number}" for number in range(3)), *(f"new {number}" for number in range(3))]
    await waiting.end("large 0")
    assert waiting.router._turns.holders.all == 3


async def test_a_call_that_wakes_a_tier_takes_no_place_and_frees_no_other(waiting: Waiting) -> None:
    waiting.router.update_replicas([Replica("a", 8)])
    metadata = RequestMetadata(request_id="one", internal_request_id="one")
    await waiting.router._choose_replica_for_request(PendingRequest([], {}, metadata))
    assert waiting.router._turns.holders.all == 0
    await waiting.send("one", LARGE)
    assert waiting.router._turns.holders.all == 1
    for _ in range(2):
        waiting.router.on_request_completed(ReplicaID("a", TIER), "one")
    assert (waiting.router._turns.holders.all, waiting.router._turns.holders.of(LARGE)) == (0, 0)


async def test_without_keys_nothing_waits_but_for_serve_itself(waiting: Waiting) -> None:
    waiting.router.update_replicas([Replica("a", 8)])
    for number in range(12):
        await waiting.send(str(number), ANYBODY)
    assert len(waiting.sent) == 12


async def test_several_ingress_replicas_keep_to_their_part_of_the_places(waiting: Waiting) -> None:
    waiting.router.initialize_state(ingress_replicas=2)
    waiting.router.update_replicas([Replica("a", 16)])
    for number in range(12):
        await waiting.send(str(number), LARGE)
    assert len(waiting.sent) == 7
