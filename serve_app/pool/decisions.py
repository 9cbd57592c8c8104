"""Decision records: an ingress replica sends its own to the pool in batches, and asks the pool for those of others."""

from __future__ import annotations

import asyncio
import secrets
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from ray.serve.handle import DeploymentHandle

from cluster.pool.decisions import KeptDecision
from cluster.pool.messages import LONG_POLL_S
from serve_app.api.errors import ApiError
from serve_app.pool.outbox import SEND_EVERY_S, Outbox
from serve_app.transport.ray_errors import ray_errors_as


class DecisionLog:
    """The decisions of this ingress replica on their way to the pool, which keeps those of all for an hour.

    After a restart of the pool's process the records that it had are gone.

    Args:
        pool: handle of the `GpuPool` deployment.
    """

    def __init__(self, pool: DeploymentHandle) -> None:
        self._pool = pool
        self._outbox = Outbox[KeptDecision](
            "ingress: decision records", lambda records: pool.keep_decisions.remote(records)
        )
        self.work = self._outbox.work

    def add(self, record: Mapping[str, Any], key_id: str | None) -> str:
        """Add a decision record (JSON values); return its new id. Never waits.

        Args:
            record: the decision record.
            key_id: of the key whose request was decided on; None: nobody was asked for one.
        """
        decision_id = new_decision_id()
        data = {"decision_id": decision_id, "made_at_s": round(time.time(), 3), "key": key_id, **record}
        self._outbox.add(KeptDecision(decision_id, zlib.compress(orjson.dumps(data), 1)))
        return decision_id

    async def get(self, decision_id: str, may_see: Callable[[str | None], bool]) -> dict[str, Any]:
        """Return a decision record of any ingress replica.

        Args:
            decision_id: of the record.
            may_see: takes the id of the key whose request was decided on; whether the asker may read it.

        Raises:
            ApiError: 404, there is none of that id in the last hour that the asker may read; 503, the pool is away for
                a moment.
        """
        # A record reaches the pool within SEND_EVERY_S. So one that is not there is asked for again.
        for wait_s in (0.0, 2 * SEND_EVERY_S):
            await asyncio.sleep(wait_s)
            if (record := await self._find(decision_id)) is not None:
                found: dict[str, Any] = orjson.loads(zlib.decompress(record))
                if may_see(found.get("key")):
                    return found
                break  # in the words for one that is not there: an id tells nothing
        message = f"decision: there is no {decision_id!r}; decisions are kept for an hour, and until the pool restarts"
        raise ApiError("not_found", message, status=404)

    async def _find(self, decision_id: str) -> bytes | None:
        own = next((record for kept, record in self._outbox.waiting if kept == decision_id), None)
        if own is not None:
            return own
        with ray_errors_as(_pool_unavailable):
            async with asyncio.timeout(LONG_POLL_S):
                record: bytes | None = await self._pool.decision.remote(decision_id)
        return record


def new_decision_id() -> str:
    """Return an id that nobody can guess: who knows it may read the record."""
    return secrets.token_hex(16)


def _pool_unavailable(error: Exception) -> ApiError:
    return ApiError("pool_unavailable", f"the GPU pool does not answer: {error}", status=503, retryable=True)
