"""Serve's choice of a replica, in which no key's requests stand before another's while they wait for one.

Serve lets requests wait in the order in which they came, so one key's fifty stand before another's first. Here a
request waits for its turn first (`serve_app/fairness/turns.py`), and then Serve chooses its replica as always. It waits
inside of what Serve counts as queued, so that the scaling policy sees it.

Several ingress replicas do not know of each other's requests, so each keeps to its part of the places. A request in
nobody's name that is not batch waits in Serve's order only, as if there were no turns.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import ceil
from typing import Any

from ray.serve._private.common import ReplicaID
from ray.serve._private.request_router.common import PendingRequest
from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve._private.request_router.replica_wrapper import RunningReplica

from serve_app.engine.interface import GenerationRequest
from serve_app.fairness.claims import Claim
from serve_app.fairness.turns import Turns
from serve_app.transport.asgi_call import HttpCall


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """A request that waits for its turn."""

    claim: Claim
    turn: asyncio.Future[None]


class FairRequestRouter(PowerOfTwoChoicesRequestRouter):
    """The router of one ingress replica to one tier. Serve makes it (`RequestRouterConfig`)."""

    def initialize_state(self, **kwargs: Any) -> None:
        """Serve calls this with `request_router_kwargs`: `ingress_replicas`, how many there are."""
        self._ingress_replicas: int = kwargs["ingress_replicas"]
        self._turns: Turns[_Waiter] = Turns()
        self._sent: dict[tuple[ReplicaID, str], list[Claim]] = {}
        """What was sent and has not ended, by replica and request id: a request that a replica sent back is sent again,
        perhaps before the end of the first time is known."""

    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> RunningReplica:
        request = pending_request.args[0] if pending_request.args else None
        if not isinstance(request, GenerationRequest | HttpCall):  # a call that only wakes a tier
            return await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
        claim = request.claim
        if is_retry or _had_its_turn(request) or (claim.tenant is None and not claim.batch):
            self._turns.holders.take(claim)
        else:
            await self._wait_for_turn(claim)
        try:
            replica = await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
        except BaseException:
            self._turns.holders.free(claim)
            self._begin_turns()
            raise
        self._sent.setdefault((replica.replica_id, pending_request.metadata.internal_request_id), []).append(claim)
        return replica

    async def _wait_for_turn(self, claim: Claim) -> None:
        """Return when the request has its place."""
        waiter = _Waiter(claim, asyncio.get_running_loop().create_future())
        self._turns.wait(claim, waiter)
        self._begin_turns()
        try:
            await waiter.turn
        except BaseException:
            if waiter.turn.done() and not waiter.turn.cancelled():  # it had got its place already
                self._turns.holders.free(claim)
                self._begin_turns()
            else:
                self._turns.leave(claim, waiter)
            raise

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Serve calls this once for each time that a request was sent."""
        super().on_request_completed(replica_id, internal_request_id)
        sent = self._sent.get((replica_id, internal_request_id))
        if sent is None:
            return
        self._turns.holders.free(sent.pop())
        if not sent:
            del self._sent[replica_id, internal_request_id]
        self._begin_turns()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Serve calls this when replicas have come or gone. What runs at one that drains takes no place elsewhere."""
        super().update_replicas(replicas)
        for place in [place for place in self._sent if place[0] not in self.curr_replicas]:
            for claim in self._sent.pop(place):
                self._turns.holders.free(claim)
        self._begin_turns()

    def _begin_turns(self) -> None:
        places = sum(replica.max_ongoing_requests for replica in self.curr_replicas.values())
        while (waiter := self._turns.next(ceil(places / self._ingress_replicas))) is not None:
            if waiter.turn.done():  # its client has just left
                self._turns.holders.free(waiter.claim)
            else:
                waiter.turn.set_result(None)


def _had_its_turn(request: GenerationRequest | HttpCall) -> bool:
    """Return whether it only goes on, as its replica was lost."""
    return isinstance(request, GenerationRequest) and request.resume is not None
