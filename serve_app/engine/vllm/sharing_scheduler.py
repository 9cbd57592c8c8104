"""vLLM's scheduler, which also divides the time of each step among the requests in it (`sustainability/shares.py`).

The engine is busy from a step's scheduling, or from the end of the step before where requests were left over, until the
step's output is there; so the intervals of the steps lie side by side and add up to the busy time. What a request owes
travels with its outputs; `step_record.py` takes it off again in the replica.

With asynchronous scheduling the next step has begun when a stop token ends a request. The engine computes it in vain,
and the request pays what it is expected to take, since its answer is complete before that is known.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, Final

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from cluster.rate_limited_log import RateLimitedLog
from serve_app.engine.vllm.compat import check_version
from serve_app.engine.vllm.plain_costs import PlainCosts
from serve_app.engine.vllm.step_record import RECORD_KEY, TOTALS_KEY, StepRecord, StepsUnderWay, StepUnderWay
from sustainability.shares import Ledger, StepParts, Work, step_shares

logger = logging.getLogger(__name__)

_TOTALS_EVERY_S: Final = 1.0
"""Interval at which the engine's totals are reported to the replica, s; they are with each request's end also."""


class SharingScheduler(AsyncScheduler):
    """See the module. It serves engines with and without asynchronous scheduling."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_version(vllm.__version__)
        self._log = RateLimitedLog(logger)
        self._plain_costs = PlainCosts(self._log)
        self._ledger = Ledger()
        self._under_way = StepsUnderWay()
        self._began_s = self._updated_s = self._reported_s = 0.0
        self._busy = False
        """Whether requests were left over when the last step's output came: time from then on is lost to the host."""
        self._ending: set[str] | None = None
        """Requests that the step whose output is taken in has ended; None between steps."""

    def add_request(self, request: Request) -> None:
        """See vLLM."""
        super().add_request(request)
        self._ledger.begin(request.request_id)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """See vLLM."""
        self._began_s = time.monotonic()
        return super().schedule(*args, **kwargs)

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        super()._update_after_schedule(scheduler_output)
        self._under_way.began(StepUnderWay(scheduler_output, self._began_s))

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """See vLLM."""
        step = self._under_way.done(scheduler_output)
        now_s = time.monotonic()
        if step is None:
            self._log.warning("step", "a step ended that was not scheduled, or long ago: nothing is learned from it")
        else:
            began_s = self._updated_s if self._busy else max(step.began_s, self._updated_s)
            parts = self._parts_of(step, now_s - began_s, model_runner_output)
            shares = step_shares(parts, self._work(step))
            self._ledger.charge(shares)
            self._charged(shares, now_s)
        self._updated_s = now_s
        self._ending = set()
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(scheduler_output, model_runner_output)
        for group in outputs.values():
            for output in group.outputs:
                self._bill(output, now_s)
        for request_id in self._ending:
            self._ledger.leave(request_id)
        self._ending = None
        self._busy = self.has_unfinished_requests()
        return outputs

    def _charged(self, shares: Mapping[str, float], now_s: float) -> None:
        """Take notice of what each request owes for a step, s."""

    def _bill(self, output: EngineCoreOutput, now_s: float) -> None:
        request_id = output.request_id
        if request_id in (self._ending or ()):
            steps = [each for each in self._under_way if request_id in each.output.num_scheduled_tokens]
            advance_s = sum(self._expected_share(each, request_id) for each in steps)
            busy_s = self._ledger.last_bill(request_id, len(steps), advance_s)
        else:
            busy_s = self._ledger.bill(request_id)
        output.kv_transfer_params = {**(output.kv_transfer_params or {}), RECORD_KEY: StepRecord(busy_s=busy_s)}
        if output.finish_reason is not None or now_s - self._reported_s > _TOTALS_EVERY_S:
            self._reported_s = now_s
            output.kv_transfer_params[TOTALS_KEY] = self._ledger.totals

    def _expected_share(self, step: StepUnderWay, request_id: str) -> float:
        seconds = self._expected_s(step.output.total_num_scheduled_tokens)
        return step_shares(StepParts(seconds), self._work(step))[request_id]

    def _expected_s(self, tokens: int) -> float:
        """Return the expected time of a step with so many tokens, s."""
        return self._plain_costs.step_s(tokens)

    def _parts_of(self, step: StepUnderWay, seconds: float, model_runner_output: ModelRunnerOutput) -> StepParts:
        """Return the time of a step that has ended, by its parts, and learn from it."""
        return self._plain_costs.parts_of(seconds, step.output.total_num_scheduled_tokens)

    def _work(self, step: StepUnderWay) -> Mapping[str, Work]:
        """Return what each request had done in a step."""
        return {request_id: Work(tokens) for request_id, tokens in step.output.num_scheduled_tokens.items()}

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        if self._ending is None:
            self._ledger.leave(request.request_id)
        else:
            self._ending.add(request.request_id)
        return super()._free_request(request, *args, **kwargs)
