"""Decision records go to the pool in batches, and are read from there by every ingress replica."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError

from cluster.pool.decisions import Decisions, KeptDecision
from serve_app.api.errors import ApiError
from serve_app.pool.decisions import DecisionLog

RECORD = {"tier": "eco", "tiers": [{"tier": "eco", "taken": True}]}


class Method:
    """A method of a handle."""

    def __init__(self, call: Callable[[Any], Any]) -> None:
        self._call = call

    async def remote(self, argument: Any) -> Any:
        return self._call(argument)


def anybody(made_by: str | None) -> bool:
    return True


class FakePool:
    """The part of the pool's handle that keeps decisions."""

    def __init__(self) -> None:
        self.decisions = Decisions()
        self.asked = 0
        self.keep_decisions = Method(self._keep)
        self.decision = Method(self._get)

    def _keep(self, batch: Sequence[KeptDecision]) -> None:
        self.decisions.add(batch, 0.0)

    def _get(self, decision_id: str) -> bytes | None:
        self.asked += 1
        return self.decisions.get(decision_id, 0.0)


async def test_a_record_is_read_by_the_replica_that_made_it_and_by_another() -> None:
    pool = FakePool()
    mine, other = DecisionLog(pool), DecisionLog(pool)
    mine.work.start()
    decision_id = mine.add(RECORD, None)
    at_once = await mine.get(decision_id, anybody)
    assert pool.asked == 0, "it is still here"
    assert (await other.get(decision_id, anybody)) == at_once
    mine.work.stop()
    assert at_once["decision_id"] == decision_id
    assert at_once["made_at_s"] > 1.7e9
    assert {key: at_once[key] for key in RECORD} == RECORD


async def test_ids_cannot_be_guessed() -> None:
    log = DecisionLog(FakePool())
    ids = {log.add(RECORD, None) for _ in range(100)}
    assert len(ids) == 100
    assert {len(name) for name in ids} == {32}


async def test_an_unknown_id_is_a_404() -> None:
    with pytest.raises(ApiError, match="kept for an hour") as error:
        await DecisionLog(FakePool()).get("0" * 32, anybody)
    assert (error.value.code, error.value.status) == ("not_found", 404)


async def test_a_record_of_another_key_is_as_one_that_is_not_there() -> None:
    log = DecisionLog(FakePool())
    decision_id = log.add(RECORD, "0123456789ab")
    with pytest.raises(ApiError, match=f"there is no '{decision_id}'; decisions are kept for an hour") as error:
        await log.get(decision_id, lambda made_by: made_by == "ba9876543210")
    assert error.value.status == 404
    assert (await log.get(decision_id, lambda made_by: made_by == "0123456789ab"))["key"] == "0123456789ab"


async def test_while_the_pool_is_away_other_replicas_say_so() -> None:
    class Away(FakePool):
        def _get(self, decision_id: str) -> bytes | None:
            raise ActorUnavailableError("restarting", b"1" * 16)

    with pytest.raises(ApiError) as error:
        await DecisionLog(Away()).get("0" * 32, anybody)
    assert (error.value.code, error.value.status) == ("pool_unavailable", 503)


async def test_a_record_is_small() -> None:
    pool = FakePool()
    log = DecisionLog(pool)
    tier = {"tier": "performance", "why_not": "stronger than needed: eco is good enough", "ttft_ms": {"expected": 1.0}}
    decision_id = log.add({"tiers": [tier] * 4}, None)
    log.work.start()
    await asyncio.sleep(1)
    log.work.stop()
    record = pool.decisions.get(decision_id, 0.0)
    assert record is not None
    assert len(record) < len(json.dumps([tier] * 4)) / 2
