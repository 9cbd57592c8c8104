"""vLLM's scheduler with a draft depth of its own for each request and step: a thin adapter around `DepthController`.

It runs in vLLM's EngineCore process (`scheduler_cls`). At every step the controller decides how many draft tokens to
verify next for each request. The proposer drafts as many as the largest of these, the scheduler cuts the drafts of the
other requests, and the controller observes the outcome. Depths are decided before drafts are seen, so cutting them
changes no output distribution.

What a step gave a request (drafted, accepted, and why that many) travels with its output; `step_record.py` takes it off
again in the replica.

If the worker can draft in two ways (`composite_drafts.py`), the scheduler says at each step for which requests in
which: as the request chose, else as the tier does now. The order to change what the tier does comes as a request, the
only thing that the replica can send to the scheduler.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from vllm.sampling_params import SamplingType
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request

from router.observation import Learned
from router.registry import Drafts, DraftsChoice
from router.spec_params import DEFAULT_CATEGORY, SpecParams
from serve_app.engine.vllm.controller_config import ControllerConfig
from serve_app.engine.vllm.fair_scheduler import FairScheduler
from serve_app.engine.vllm.scheduler_guard import DepthGuard
from serve_app.engine.vllm.step_record import (
    DRAFTS_ATTRIBUTE,
    LEARNED_KEY,
    OWN_DEPTH_ATTRIBUTE,
    RECORD_KEY,
    StepUnderWay,
)
from serve_app.engine.vllm.step_times import TIMES_ATTRIBUTE, StepTimes
from serve_app.speculation.batch import Decision
from serve_app.speculation.controller import StepResult
from sustainability.shares import StepParts, Work

ORDER_PREFIX: Final = "power-lever-drafts:"
"""Prefix of the id of a request that is an order; the drafts to switch to follow. `engine.py` and vLLM's OpenAI routes
give the ids of clients other prefixes."""
_LEARNED_EVERY_S: Final = 1.0
"""Interval at which what the controller has learned is reported to the replica, s."""


@dataclass(slots=True)
class _Known:
    """What the scheduler holds of a request."""

    spec: SpecParams
    """Resolved; `drafts` is open where it follows the tier."""
    category: str
    seeded: bool
    decision: Decision | None = None
    """For its next step; None until it has read its prompt, again after a preemption."""
    drafts: Drafts = "own"
    """Who makes the drafts of its next step."""
    tau: float | None = None
    """Set when it ends: the acceptance rate below which it would have stopped drafting."""

    @property
    def never_drafts(self) -> bool:
        return self.seeded or self.spec.k == 0


class DepthScheduler(FairScheduler):
    """See the module. It serves proposers that draft ahead in the worker (draft models, EAGLE) and n-gram drafts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = self.vllm_config.additional_config
        assert isinstance(config, ControllerConfig), f"additional_config is {config!r}"
        self._speculation, settings = config.speculation, config.settings
        self._default_drafts: DraftsChoice = self._speculation.default_drafts
        self._controller = DepthGuard(self.num_spec_tokens, settings, self._log, config.facts)
        self._known: dict[str, _Known] = {}
        # Requests that have ended; forgotten when the records of the step that ended them are written.
        self._freed: list[str] = []
        self._drafts_ahead = bool(self.scheduler_config.async_scheduling)
        self._learned_s = 0.0
        """When what the controller has learned was reported last, s."""
        self._seen: Mapping[str, tuple[int, int]] = {}
        """Drafted and accepted tokens of the step whose output is taken in."""
        self._measured: list[StepResult] = []
        """What was measured of it, until the controller learns from it."""
        self._own_depth = 0  # of the step before
        # Without a lookup vLLM pads a request's first decode step with k_max impossible drafts.
        self.dynamic_sd_lookup = [self.num_spec_tokens] * (self.scheduler_config.max_num_seqs + 1)

    def add_request(self, request: Request) -> None:
        """See vLLM; speculation is in the sampling parameters' extra arguments."""
        super().add_request(request)
        if request.request_id.startswith(ORDER_PREFIX):
            self._change_default(request.request_id)
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
        spec, _ = requested.resolve(self._speculation)
        self._known[request.request_id] = _Known(spec, category, seeded)
        self._begin_in_controller(request.request_id)

    def _change_default(self, order: str) -> None:
        """Draft in the ordered way, from the next step on, for all requests that have not chosen."""
        for choice in get_args(DraftsChoice):
            if order.startswith(ORDER_PREFIX + choice) and choice != self._default_drafts:
                self._default_drafts = choice
                for request_id, known in self._known.items():
                    if known.spec.drafts is None and request_id not in self._freed:
                        self._begin_in_controller(request_id)

    def _begin_in_controller(self, request_id: str) -> None:
        """Have the controller begin a request; what it saw of the request's other drafts is forgotten."""
        known = self._known[request_id]
        # Where there is one way to draft, the controller needs not know which.
        drafts = self._choice(known) if self._speculation.drafts_both_ways else None
        spec = known.spec.model_copy(update={"drafts": drafts})
        self._controller.add(request_id, spec, known.category, seeded=known.seeded)

    def _choice(self, known: _Known) -> DraftsChoice:
        return known.spec.drafts or self._default_drafts

    def _drafter(self, known: _Known) -> Drafts:
        """Return who makes the request's next drafts."""
        choice = self._choice(known)
        if choice != "auto":
            return choice
        return known.decision.drafts if known.decision else "own"

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        # The decisions of the step before hold for this step; those made now hold for the next.
        scheduled = {key: self._known[key] for key in scheduler_output.num_scheduled_tokens.keys() & self._known.keys()}
        reasons = {key: known.decision.reason for key, known in scheduled.items() if known.decision}
        drafts = {key: known.drafts for key, known in scheduled.items()}
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
        for request_id, known in scheduled.items():
            known.decision = decisions.get(request_id, known.decision)
            known.drafts = self._drafter(known)
        without_own = self._without_own(scheduled)
        own_depth = max((each.k for key, each in decisions.items() if key not in without_own), default=0)
        step = self._under_way.newest
        step.reasons, step.drafts, step.own_depth, step.own_depth_before = reasons, drafts, own_depth, self._own_depth
        self._own_depth = own_depth
        wanted = max((each.k for each in decisions.values()), default=0)
        scheduler_output.num_spec_tokens_to_schedule = self._speculation.to_draft(wanted)
        setattr(scheduler_output, DRAFTS_ATTRIBUTE, without_own)
        setattr(scheduler_output, OWN_DEPTH_ATTRIBUTE, own_depth)
        for request_id, decision in decisions.items():
            # Drafts made ahead are not known yet, so these are placeholders. Others come by `update_draft_token_ids`.
            self.requests[request_id].spec_token_ids = [-1] * decision.k if self._drafts_ahead else []

    def _without_own(self, scheduled: Mapping[str, _Known]) -> frozenset[str]:
        """Return the requests that need no draft of the entry's own: the lookup drafts for them, or nothing ever."""
        both_ways = self._speculation.drafts_both_ways
        return frozenset(
            key for key, known in scheduled.items() if known.never_drafts or (both_ways and known.drafts == "ngram")
        )

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        """See vLLM. These are the drafts of a proposer that does not draft ahead."""
        super().update_draft_token_ids(draft_token_ids)
        for request_id in draft_token_ids.req_ids:
            request, known = self.requests.get(request_id), self._known.get(request_id)
            if request is not None and known is not None and known.decision is not None:
                request.spec_token_ids = request.spec_token_ids[: known.decision.k]

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """See vLLM."""
        # Before vLLM cuts the tokens at a stop.
        counts = self._seen = self._counts(scheduler_output, model_runner_output)
        step = self._under_way.of(scheduler_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        now_s = time.monotonic()
        for group in outputs.values():
            for output in group.outputs:
                drafted, accepted = counts.get(output.request_id, (0, 0))
                known = self._known.get(output.request_id)
                params = output.kv_transfer_params
                params[RECORD_KEY] = params[RECORD_KEY]._replace(
                    drafted=drafted,
                    accepted=accepted,
                    reason=step.reasons.get(output.request_id, "") if step else "",
                    category=known.category if known else "",
                    drafts=step.drafts.get(output.request_id, "own") if step else "own",
                    tau=known.tau if known else None,
                )
                if now_s - self._learned_s > _LEARNED_EVERY_S:
                    self._learned_s = now_s
                    params[LEARNED_KEY] = self._learned()
        for request_id in self._freed:
            self._known.pop(request_id, None)
        self._freed.clear()
        for result in self._measured:
            self._controller.observe(result)
        self._measured.clear()
        return outputs

    def _parts_of(self, step: StepUnderWay, seconds: float, model_runner_output: ModelRunnerOutput) -> StepParts:
        times: StepTimes | None = getattr(model_runner_output, TIMES_ATTRIBUTE, None)
        idle_s = times.idle_s if times and self._busy else 0.0
        # V2 hands a step's tokens over before it drafts, so the time until then has the drafting before it.
        drafted = step.own_depth_before if self.use_v2_model_runner else step.own_depth
        result = StepResult(
            seconds,
            step.output.total_num_scheduled_tokens,
            times.depth if times else drafted,
            self._seen,
            decoding=len(step.reasons),
            prefill=len(step.reasons) < len(step.output.num_scheduled_tokens),
            ngram=self._looked_up(step, self._seen),
            verify_s=idle_s + times.verify_s if times else None,
            draft_s=times.draft_s if times else None,
            uniform=self._uniform(step, step.output),
        )
        self._measured.append(result)
        return self._controller.parts_of(result)

    def _expected_s(self, tokens: int) -> float:
        return self._controller.step_s(tokens)

    def _work(self, step: StepUnderWay) -> Mapping[str, Work]:
        """Return what each request had done in a step. Drafts from a lookup take none of the time of drafting."""
        drafts = step.output.scheduled_spec_decode_tokens
        return {
            key: Work(tokens, 0 if step.drafts.get(key) == "ngram" else len(drafts.get(key, ())))
            for key, tokens in step.output.num_scheduled_tokens.items()
        }

    def _learned(self) -> Learned:
        """Return what the controller has learned; log its advice."""
        learned = self._controller.learned()
        if learned.advice is not None:
            self._log.warning("advice", "advice: %s: %s", learned.advice, learned.reason)
        return learned._replace(tau=dict(learned.tau))  # vLLM's encoder knows no other mappings

    @staticmethod
    def _uniform(step: StepUnderWay, scheduler_output: SchedulerOutput) -> int | None:
        """Return the draft tokens that were scheduled for every request; None: not as many for all, or a prompt."""
        widths: set[int] = set(scheduler_output.num_scheduled_tokens.values())
        if len(step.reasons) < len(scheduler_output.num_scheduled_tokens) or len(widths) != 1:
            return None
        return next(iter(widths)) - 1

    def _looked_up(self, step: StepUnderWay, counts: Mapping[str, tuple[int, int]]) -> frozenset[str]:
        """Return the requests whose verified drafts came from n-gram lookup beside an own draft."""
        if not self._speculation.drafts_both_ways:
            return frozenset()
        return frozenset(key for key in counts if step.drafts.get(key) == "ngram")

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        # It reads its text again before it decodes, so what was decided for its next step holds for none.
        known = self._known.get(request.request_id)
        if known is not None:
            known.decision = None
        super()._preempt_request(request, *args, **kwargs)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        known = self._known.get(request.request_id)
        if known is not None:
            known.tau = self._controller.tau(request.request_id)
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
