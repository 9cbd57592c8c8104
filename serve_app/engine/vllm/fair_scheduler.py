"""vLLM's scheduler, in which no key's requests stand before another's: `serve_app/fairness/seats.py` gives the order.

Before each step the waiting requests are put in this order. vLLM's own `priority` policy then admits them in it, and
when the KV cache is full takes back the memory of the last one. Two things it does not do for a request that waits:

- The prompts of keys that are over their share may take the whole step. Then each prompt gets an equal part of it, so
  that a short one that has come is read at once.
- All seats, or all memory, may be taken. If a key without a seat was left waiting, the last request of a key over its
  share that holds several seats, or of batch, goes back to the queue; it reads its text again later. That costs the
  engine time, so none goes back for a key that has a seat, nor one that went back `MOST_SENT_BACK` times.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request, RequestStatus

from serve_app.engine.vllm.claim_argument import claim_of
from serve_app.engine.vllm.sharing_scheduler import SharingScheduler
from serve_app.fairness.claims import ANYBODY, Claim
from serve_app.fairness.engine_time import EngineTime
from serve_app.fairness.seats import Seating, seating

MOST_SENT_BACK: Final = 2
"""A request that went back so often, for whatever reason, makes room for nobody any more."""


class FairScheduler(SharingScheduler):
    """See the module. As long as nobody has a key and nothing is batch, it changes nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._claims: dict[str, Claim] = {}
        """Of the requests that are not anybody's."""
        self._engine_time = EngineTime()
        self._all_seats: int = self.max_num_active_reqs
        self._own_threshold: int = self.scheduler_config.long_prefill_token_threshold
        self._left: frozenset[str] = frozenset()
        """Requests that the last step left waiting, though it had time for more."""

    def add_request(self, request: Request) -> None:
        """See vLLM."""
        claim = claim_of(request.sampling_params)
        if claim != ANYBODY:
            self._claims[request.request_id] = claim
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """See vLLM."""
        self.max_num_active_reqs = self._all_seats
        self.scheduler_config.long_prefill_token_threshold = self._own_threshold
        if self._claims:
            self._put_in_order()
        scheduled = super().schedule(*args, **kwargs)
        # vLLM counts a request's drafts of the next step against this one.
        tokens = scheduled.total_num_scheduled_tokens + len(self.running) * self.num_spec_tokens
        has_time = bool(self._claims) and tokens < self.max_num_scheduled_tokens
        self._left = frozenset(request.request_id for request in self.waiting) if has_time else frozenset()
        return scheduled

    def _put_in_order(self) -> None:
        present = {claim.tenant for claim in self._claims.values() if claim.tenant is not None}
        over = self._engine_time.over_share(present)
        waiting = self._in_arrival_order()
        order = self._seating(waiting, over)
        if self._make_room(order):
            waiting = self._in_arrival_order()
            order = self._seating(waiting, over)
        self.max_num_active_reqs = order.seats
        self.waiting.remove_requests(waiting)  # before their ranks change, on which its heap relies
        for request in (*self.running, *waiting):
            request.priority = order.ranks[request.request_id]
        for request in waiting:
            self.waiting.add_request(request)
        self._share_prompts(over, order.seats - len(self.running))

    def _in_arrival_order(self) -> list[Request]:
        return sorted(self.waiting, key=lambda request: request.arrival_time)

    def _seating(self, waiting: Sequence[Request], over: frozenset[str]) -> Seating:
        seated = [(request.request_id, self._claim(request)) for request in self.running]
        queued = [(request.request_id, self._claim(request)) for request in waiting]
        settled = {one.request_id for one in self.running if one.num_preemptions >= MOST_SENT_BACK}
        return seating(seated, queued, self._all_seats, over, settled)

    def _make_room(self, order: Seating) -> bool:
        """Send one request back to the queue, if a key without a seat was left waiting; return whether it did."""
        ready = (one for one in self.waiting if one.request_id in order.seatless & self._left and self._is_ready(one))
        if next(ready, None) is None:
            return False
        replaceable = [one for one in self.running if one.request_id in order.replaceable]
        if not replaceable:
            return False
        last = max(replaceable, key=lambda request: (order.ranks[request.request_id], request.arrival_time))
        if not self._request_blocks_can_be_freed(last):
            return False
        self.running.remove(last)
        self._preempt_request(last, time.monotonic(), drop_stale_output=self.requires_kv_delivery)
        # It may be back in this very step, for which the V1 runner must not take it for one that went on.
        self.prev_step_scheduled_req_ids.discard(last.request_id)
        return True

    def _is_ready(self, request: Request) -> bool:
        """Return whether a request that waits would begin if there was room.

        vLLM finds out that a grammar is ready when it looks at the request, and with all seats taken it looks at none.
        """
        if request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
            return bool(self._handle_blocked_waiting_request(request))
        if request.num_stale_output_tokens and not request.drop_stale_output:
            return False
        return request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)

    def _share_prompts(self, over: frozenset[str], free: int) -> None:
        """Give each prompt an equal part of the step, if some keys' would leave no room for the others'.

        Args:
            over: keys over their share.
            free: seats for those that wait.
        """
        reading = [request for request in self.running if _reads(request)]
        behind = [request for request in reading if self._stands_back(request, over)]
        if not behind:
            return
        coming = islice(self.waiting, free)
        before = [one for one in (*reading, *coming) if not self._stands_back(one, over)]
        if not before:
            return
        each = max(1, self.max_num_scheduled_tokens // (len(behind) + len(before)))
        own = self._own_threshold
        self.scheduler_config.long_prefill_token_threshold = min(own, each) if own > 0 else each

    def _stands_back(self, request: Request, over: frozenset[str]) -> bool:
        claim = self._claim(request)
        return claim.batch or claim.tenant in over

    def _claim(self, request: Request) -> Claim:
        return self._claims.get(request.request_id, ANYBODY)

    def _charged(self, shares: Mapping[str, float], now_s: float) -> None:
        used: defaultdict[str, float] = defaultdict(float)
        for request_id, seconds in shares.items():
            if (tenant := self._claims.get(request_id, ANYBODY).tenant) is not None:
                used[tenant] += seconds
        self._engine_time.use(used, now_s)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self._claims.pop(request.request_id, None)
        return super()._free_request(request, *args, **kwargs)


def _reads(request: Request) -> bool:
    """Return whether the engine has not read the request's prompt to its end."""
    return bool(request.num_computed_tokens < request.num_prompt_tokens)
