"""vLLM's scheduler, in which no key's requests stand before another's: `serve_app/fairness/seats.py` gives the order.

Before each step the waiting requests are put in this order. vLLM's own `priority` policy then admits them in it, and
when the KV cache is full takes back the memory of the last one. Two things it does not do for a request that waits:

- The prompts of keys that are over their share may take the whole step. Then each prompt gets an equal part of it, so
  that a short one that has come is read at once.
- All seats, or all memory, may be taken. If a request of the first rank was left waiting, the last request of a key
  over its share, or of batch, goes back to the queue before the next step; it reads its text again later.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from serve_app.engine.vllm.claim_argument import claim_of
from serve_app.engine.vllm.sharing_scheduler import SharingScheduler
from serve_app.fairness.claims import ANYBODY, Claim
from serve_app.fairness.engine_time import EngineTime
from serve_app.fairness.seats import FIRST, seating


class FairScheduler(SharingScheduler):
    """See the module. As long as nobody has a key and nothing is batch, it changes nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._claims: dict[str, Claim] = {}
        """Of the requests that are not anybody's."""
        self._engine_time = EngineTime()
        self._all_seats: int = self.max_num_active_reqs
        self._own_threshold: int = self.scheduler_config.long_prefill_token_threshold
        self._first_waits = False
        """Whether the last step left a request of the first rank waiting, though it had time for it."""

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
        self._first_waits = bool(self._claims) and self._left_waiting(scheduled)
        return scheduled

    def _left_waiting(self, scheduled: SchedulerOutput) -> bool:
        if not self.waiting:
            return False
        head = self.waiting.peek_request()
        # vLLM counts a request's drafts of the next step against this one.
        tokens = scheduled.total_num_scheduled_tokens + len(self.running) * self.num_spec_tokens
        ready = head not in self.deferred_waiting  # for its grammar, or the end of a step that it was taken out of
        return head.priority == FIRST and ready and tokens < self.max_num_scheduled_tokens

    def _put_in_order(self) -> None:
        present = {claim.tenant for claim in self._claims.values() if claim.tenant is not None}
        over = self._engine_time.over_share(present)
        if self._first_waits and self.running:
            self._make_room(over)
        waiting = sorted(self.waiting, key=lambda request: request.arrival_time)
        seated = [(request.request_id, self._claim(request)) for request in self.running]
        queued = [(request.request_id, self._claim(request)) for request in waiting]
        order = seating(seated, queued, self._all_seats, over)
        self.max_num_active_reqs = order.seats
        self.waiting.remove_requests(waiting)  # before their ranks change, on which its heap relies
        for request in (*self.running, *waiting):
            request.priority = order.ranks[request.request_id]
        for request in waiting:
            self.waiting.add_request(request)
        if waiting or any(map(_reads, self.running)):
            self._share_prompts(over)

    def _make_room(self, over: frozenset[str]) -> None:
        """Send the last request back to the queue, if it stands back."""
        last = max(self.running, key=lambda request: (request.priority, request.arrival_time))
        if self._stands_back(last, over) and self._request_blocks_can_be_freed(last):
            self.running.remove(last)
            self._preempt_request(last, time.monotonic(), drop_stale_output=self.requires_kv_delivery)
            # It may be back in this very step, for which the V1 runner must not take it for one that went on.
            self.prev_step_scheduled_req_ids.discard(last.request_id)

    def _share_prompts(self, over: frozenset[str]) -> None:
        """Give each prompt an equal part of the step, if some keys' would leave no room for the others'."""
        reading = [request for request in self.running if _reads(request)]
        behind = [request for request in reading if self._stands_back(request, over)]
        before = [one for one in (*reading, *self.waiting) if not self._stands_back(one, over)]
        if not behind or not before:
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
