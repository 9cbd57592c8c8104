"""The ingress's copy of the pool's observation: waits for updates, survives the pool's absence."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from grpc import RpcError
from ray.exceptions import ActorUnavailableError

from cluster.pool.messages import LONG_POLL_S
from router.observation import Observation, TierState
from serve_app.api.errors import ApiError
from serve_app.pool.view import PoolView
from tests.support.app_config import FixedPool

COLD = Observation()
WARM = Observation({"eco": TierState(running=1)})
AWAY = ActorUnavailableError("restarting", b"1" * 16)


class FakePool:
    """A pool's handle, its `wait_for_update` method and the scripted answers; then it is silent for ever."""

    def __init__(self, answers: Sequence[tuple[int, Observation] | BaseException]) -> None:
        self.answers = list(answers)
        self.seen: list[int] = []

    @property
    def wait_for_update(self) -> FakePool:
        return self

    async def remote(self, seen: int) -> tuple[int, Observation]:
        self.seen.append(seen)
        if not self.answers:
            await asyncio.sleep(10_000)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


async def test_a_view_waits_for_an_observation_newer_than_its_last() -> None:
    pool = FakePool([(3, COLD), (4, WARM)])
    view = PoolView(pool)
    view.work.start()
    await asyncio.sleep(5)
    view.work.stop()
    assert pool.seen == [-1, 3, 4]
    assert view.observation == WARM


@pytest.mark.parametrize(
    "away",
    [AWAY, RpcError("the call failed"), asyncio.CancelledError(), KeyError("nobody expects this")],
    ids=["Ray", "gRPC", "cancelled", "unexpected"],
)
async def test_while_the_pool_is_away_the_last_observation_stays_and_then_counting_starts_anew(
    away: BaseException,
) -> None:
    pool = FakePool([(7, WARM), away, away, (1, COLD)])
    view = PoolView(pool)
    view.work.start()
    await asyncio.sleep(1.2)
    assert view.observation == WARM
    assert (view.work.trouble() or "").startswith("2 failed rounds")
    await asyncio.sleep(5)
    view.work.stop()
    assert pool.seen == [-1, 7, -1, -1, 1]
    assert view.observation == COLD
    assert view.work.trouble() is None


async def test_a_lost_answer_is_requested_again() -> None:
    pool = FakePool([(7, WARM)])
    view = PoolView(pool)
    view.work.start()
    await asyncio.sleep(2 * LONG_POLL_S - 0.1)
    assert pool.seen == [-1, 7]
    await asyncio.sleep(1.2)
    view.work.stop()
    assert pool.seen == [-1, 7, -1]
    assert view.observation == WARM


def test_a_failed_tier_raises_with_its_reasons_and_another_does_not() -> None:
    view = FixedPool({"eco": TierState(failed=True, reason="step a failed: no memory"), "ultra": TierState()})
    with pytest.raises(ApiError, match="tier eco cannot start: step a failed: no memory") as error:
        view.raise_if_failed("eco")
    assert (error.value.status, error.value.code, error.value.retryable) == (503, "tier_unavailable", True)
    view.raise_if_failed("ultra")
