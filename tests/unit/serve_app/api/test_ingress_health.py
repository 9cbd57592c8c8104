"""`/healthz`: the process is alive, and shows its failing background work, which ends no replica at once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from ray import serve
from ray.exceptions import ActorUnavailableError
from starlette.requests import Request

from cluster.supervision import HOPELESS_AFTER_S
from router.observation import Observation, TierState
from serve_app.api.ingress import Ingress
from tests.support.app_config import app_config

REQUEST = Request({"type": "http", "method": "GET", "path": "/healthz", "headers": []})


@pytest.fixture(autouse=True)
def replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """The context that Serve gives a replica."""
    context = SimpleNamespace(replica_id=SimpleNamespace(unique_id="replica-1"))
    monkeypatch.setattr(serve, "get_replica_context", lambda: context)


class Pool:
    """A pool's handle whose `wait_for_update` ends as the test says."""

    def __init__(self, ends: BaseException | Observation) -> None:
        self.ends = ends

    @property
    def wait_for_update(self) -> Pool:
        return self

    async def remote(self, seen: int) -> tuple[int, Observation]:
        await asyncio.sleep(1)
        if isinstance(self.ends, BaseException):
            raise self.ends
        return seen + 1, self.ends


async def health(ingress: Ingress) -> tuple[int, dict[str, Any]]:
    transport = httpx.ASGITransport(ingress.__serve_build_asgi_app__())
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        answer = await http.get("/healthz")
    return answer.status_code, answer.json()


async def test_failing_background_work_is_shown_and_the_process_still_counts_as_alive() -> None:
    pool = Pool(KeyError("nobody expects this"))
    ingress = Ingress(app_config(), pool, {})
    assert await health(ingress) == (200, {"status": "ok"})
    ingress._pool.work.start()
    await asyncio.sleep(10)
    status, body = await health(ingress)
    assert (status, body["status"]) == (200, "degraded")
    assert "KeyError: 'nobody expects this'" in body["failing"]["ingress: view of the pool"]
    await ingress.check_health()
    pool.ends = Observation({"eco": TierState(running=1)})
    await asyncio.sleep(10)
    assert await health(ingress) == (200, {"status": "ok"})
    ingress._pool.work.stop()


async def test_failing_work_of_the_pool_and_of_replicas_is_shown_too() -> None:
    ingress = Ingress(app_config(), Pool(Observation(failing={"eco: reports": "3 failed rounds"})), {})
    await ingress._pool.refresh()
    assert await health(ingress) == (200, {"status": "degraded", "failing": {"eco: reports": "3 failed rounds"}})


@pytest.mark.parametrize(
    ("error", "replaced"),
    [(KeyError("odd"), True), (ActorUnavailableError("restarting", b"1" * 16), False), (TimeoutError(), False)],
)
async def test_only_a_lasting_fault_of_its_own_makes_the_ingress_unhealthy_not_a_pool_that_is_away(
    error: Exception, replaced: bool
) -> None:
    ingress = Ingress(app_config(), Pool(error), {})
    ingress._pool.work.start()
    await asyncio.sleep(HOPELESS_AFTER_S + 60)
    if replaced:
        with pytest.raises(RuntimeError, match="ingress: view of the pool"):
            await ingress.check_health()
    else:
        await ingress.check_health()
    ingress._pool.work.stop()
