"""vLLM's scheduler with a draft depth of its own for each request and step: a thin adapter around `DepthController`.

It runs in vLLM's EngineCore process (`scheduler_cls`). At every step the controller decides how many draft tokens to
verify next for each request. The proposer drafts as many as the largest of these, the scheduler cuts the drafts of the
other requests, and the controller observes the outcome. Depths are decided before drafts are seen, so cutting them
changes no output distribution.

What a step gave a request (drafted, accepted, and why that many) travels with its output; `step_record.py` takes it off
again in the replica.

If the worker can draft in two ways (`composite_drafts.py`), the scheduler says in which at each step. The order to
switch comes as a request, the only thing that the replica can send to the scheduler.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final, get_args

import vllm
from vllm.sampling_params import SamplingType
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request

from cluster.rate_limited_log import RateLimitedLog
from router.registry import Drafts
from router.spec_params import DEFAULT_CATEGORY, SpecParams
from serve_app.engine.vllm.compat import check_version
from serve_app.engine.vllm.controller_config import ControllerConfig
from serve_app.engine.vllm.scheduler_guard import DepthGuard
from serve_app.engine.vllm.step_record import (
    DRAFTS_ATTRIBUTE,
    RECORD_KEY,
    StepRecord,
    StepsUnderWay,
    StepUnderWay,
)
from serve_app.engine.vllm.step_times import TIMES_ATTRIBUTE, StepTimes
from serve_app.speculation.batch import Decision
from serve_app.speculation.controller import StepResult

logger = logging.getLogger(__name__)

ORDER_PREFIX: Final = "power-lever-drafts:"
"""Prefix of the id of a request that is an order; the drafts to switch to follow. `engine.py` and vLLM's OpenAI routes
give the ids of clients other prefixes."""


class DepthScheduler(AsyncScheduler):
    """See the module. It serves proposers that draft ahead in the worker (draft models, EAGLE) and n-gram drafts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_version(vllm.__version__)
        config = self.vllm_config.additional_config
        assert isinstance(config, ControllerConfig), f"additional_config is {config!r}"
        self._speculation, settings = config.speculation, config.settings
        self._drafts: Drafts = "own"
        self._drafted_by: Drafts = "own"  # in the step before
        self._log = RateLimitedLog(logger)
        self._controller = DepthGuard(self.num_spec_tokens, settings, self._log)
        self._decisions: dict[str, Decision] = {}
        self._categories: dict[str, str] = {}
        # Requests that have ended; forgotten when the records of the step that ended them are written.
        self._freed: list[str] = []
        self._drafts_ahead = bool(self.scheduler_config.async_scheduling)
        self._under_way = StepsUnderWay()
        self._began_s = self._updated_s = 0.0
        self._asked = 0  # draft iterations of the step before
        # Without a lookup vLLM pads a request's first decode step with k_max impossible drafts.
        self.dynamic_sd_lookup = [self.num_spec_tokens] * (self.scheduler_config.max_num_seqs + 1)

    def add_request(self, request: Request) -> None:
        """See vLLM; speculation is in the sampling parameters' extra arguments."""
        super().add_request(request)
        if request.request_id.startswith(ORDER_PREFIX):
            self._switch_drafts(request.request_id)
        params = request.sampling_params
        arguments = (params.extra_args if params is not None else None) or {}
        try:
            requested, category = SpecParams.from_arguments(arguments)
        except ValueError as error:
            # The ingress checks the parameters; an error raised here would end the engine for everybody.
            self._log.warning("params", "request %s: %s; the entry's own are used", request.request_id, error)
            requested, category = SpecParams(), DEFAULT_CATEGORY
        # Depths follow measured times. With drafts they would decide how often the request's random generator is used,
        # and so its text; without drafts it is used once a token.
        seeded = params is not None and params.sampling_type is SamplingType.RANDOM_SEED
        self._categories[request.request_id] = category
        spec, _ = requested.resolve(self._speculation)
        self._controller.add(request.request_id, spec, category, seeded=seeded)

    def _switch_drafts(self, order: str) -> None:
        """Draft in the ordered way from the next step on. Its costs and acceptance are yet to be learned."""
        for drafts in get_args(Drafts):
            if order.startswith(ORDER_PREFIX + drafts) and drafts != self._drafts:
                self._drafts = drafts
                self._controller.start_afresh()

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """See vLLM."""
        self._began_s = time.monotonic()
        return super().schedule(*args, **kwargs)

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        # The decisions of the step before hold for this step; those made now hold for the next.
        reasons = {
            key: self._decisions[key].reason for key in scheduler_output.num_scheduled_tokens.keys() & self._decisions
        }
        self._under_way.began(StepUnderWay(scheduler_output, self._began_s, reasons, self._drafted_by, self._asked))
        self._drafted_by = self._drafts
        setattr(scheduler_output, DRAFTS_ATTRIBUTE, self._drafts)
        super()._update_after_schedule(scheduler_output)
        decoding: list[str] = []
        prefill_tokens = 0
        for request_id in scheduler_output.num_scheduled_tokens:
            request = self.requests[request_id]
            if request.is_prefill_chunk:
                prefill_tokens += request.num_tokens - request.num_computed_tokens
            else:
                decoding.append(request_id)
        prefill_tokens = min(prefill_tokens, self.max_num_scheduled_tokens)
        decisions = self._controller.decide(decoding, prefill_tokens)
        self._decisions.update(decisions)
        self._asked = max((each.k for each in decisions.values()), default=0)
        scheduler_output.num_spec_tokens_to_schedule = self._asked
        for request_id, decision in decisions.items():
            # Drafts made ahead are not known yet, so these are placeholders. Others come by `update_draft_token_ids`.
            self.requests[request_id].spec_token_ids = [-1] * decision.k if self._drafts_ahead else []

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        """See vLLM. These are the drafts of a proposer that does not draft ahead."""
        super().update_draft_token_ids(draft_token_ids)
        for request_id in draft_token_ids.req_ids:
            request = self.requests.get(request_id)
            decision = self._decisions.get(request_id)
            if request is not None and decision is not None and len(request.spec_token_ids) > decision.k:
                request.spec_token_ids = request.spec_token_ids[: decision.k]

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """See vLLM."""
        step = self._under_way.done(scheduler_output)
        now_s = time.monotonic()
        seconds = now_s - max(step.began_s, self._updated_s) if step else None
        self._updated_s = now_s
        counts = self._counts(scheduler_output, model_runner_output)
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(scheduler_output, model_runner_output)
        for group in outputs.values():
            for output in group.outputs:
                drafted, accepted = counts.get(output.request_id, (0, 0))
                reason = step.reasons.get(output.request_id, "") if step else ""
                drafts = step.drafts if step else self._drafted_by
                record = StepRecord(drafted, accepted, reason, self._categories.get(output.request_id, ""), drafts)
                output.kv_transfer_params = {**(output.kv_transfer_params or {}), RECORD_KEY: record}
        for request_id in self._freed:
            self._decisions.pop(request_id, None)
            self._categories.pop(request_id, None)
        self._freed.clear()
        if step is None:
            self._log.warning("step", "a step ended that was not scheduled, or long ago: nothing is learned from it")
        elif step.drafts == self._drafts:  # drafts from before a switch teach nothing about the others
            times: StepTimes | None = getattr(model_runner_output, TIMES_ATTRIBUTE, None)
            # V2 hands a step's tokens over before it drafts, so the time until then has the drafting before it.
            drafted = step.drafted_before if self.use_v2_model_runner else scheduler_output.num_spec_tokens_to_schedule
            self._controller.observe(
                StepResult(
                    seconds,
                    scheduler_output.total_num_scheduled_tokens,
                    times.depth if times else drafted,
                    counts,
                    decoding=len(step.reasons),
                    prefill=len(step.reasons) < len(scheduler_output.num_scheduled_tokens),
                    verify_s=times.verify_s if times else None,
                    draft_s=times.draft_s if times else None,
                )
            )
        return outputs

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self._controller.remove(request.request_id)
        self._freed.append(request.request_id)
        return super()._free_request(request, *args, **kwargs)

    def _counts(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[str, tuple[int, int]]:
        """Return for each request that decoded: draft tokens verified, and how many of them were accepted."""
        sampled = model_runner_output.sampled_token_ids
        invalid = scheduler_output.num_invalid_spec_tokens or {}
        counts: dict[str, tuple[int, int]] = {}
        for request_id in scheduler_output.num_scheduled_tokens:
            index = model_runner_output.req_id_to_index.get(request_id)
            tokens = len(sampled[index]) if sampled and index is not None else 0
            if tokens:
                drafts = scheduler_output.scheduled_spec_decode_tokens.get(request_id, ())
                counts[request_id] = (len(drafts) - invalid.get(request_id, 0), tokens - 1)
        return self._controller.possible(counts)
