"""vLLM behind the engine interface; imported only inside an engine replica.

It adds to `AsyncLLM`: a draft depth of its own for each request (`scheduler.py`), the exact record of what was drafted
and accepted (`step_record.py`), and a text for each token (`token_text.py`). vLLM's own OpenAI layer renders and
tokenizes chats and gives them their sampling defaults, so `/api/inference` and the OpenAI routes answer alike.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import zlib
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY
from prometheus_client.metrics_core import Metric
from starlette.types import ASGIApp
from tokenizers.decoders import DecodeStream
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.launcher import validate_api_server_args
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.utils.api_utils import get_max_tokens
from vllm.exceptions import VLLMError
from vllm.inputs import TokensPrompt
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.reasoning import ReasoningParserManager
from vllm.sampling_params import SamplingParams
from vllm.utils.system_utils import kill_process_tree
from vllm.v1.engine import EngineCoreEventType, EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector, RequestState
from vllm.v1.metrics.loggers import PrometheusStatLogger, StatLoggerBase
from vllm.v1.metrics.ray_wrappers import RayPrometheusStatLogger
from vllm.v1.metrics.stats import RequestSpecDecodeMetrics, RequestStateStats

from cluster.gpu_environment import drop_unwritable_caches
from cluster.observability.totals import VLLMS_METRICS
from router.observation import Learned
from router.registry import ChainEntry, DraftsChoice, Tier
from router.signs import NO_SIGNS, SignReader
from serve_app.api.spec_view import used_spec
from serve_app.engine.energy.meter import EnergyBilling
from serve_app.engine.http_runs import RunWatch, current_run
from serve_app.engine.interface import (
    Admitted,
    DraftCount,
    EngineError,
    EngineItem,
    EngineLoad,
    Finished,
    GenerationRequest,
    SpecStats,
    TokenStep,
    pack_ids,
    unpack_ids,
)
from serve_app.engine.vllm.arguments import engine_args, server_namespace
from serve_app.engine.vllm.claim_argument import put_claim
from serve_app.engine.vllm.compat import check_interface
from serve_app.engine.vllm.errors import as_ours, errors_as_ours, refuse_bad_grammars
from serve_app.engine.vllm.load import OutputLoad
from serve_app.engine.vllm.runner import runner_environment, runner_for
from serve_app.engine.vllm.scheduler import ORDER_PREFIX
from serve_app.engine.vllm.step_record import Drafted, RequestRecord, SpecRecords
from serve_app.engine.vllm.thoughts import AnswerTokens, ReasoningParser
from serve_app.engine.vllm.token_text import TokenTexts
from serve_app.fairness.claims import current_claim
from serve_app.speculation.settings import SpeculationSettings
from sustainability.shares import Totals

logger = logging.getLogger("ray.serve")
_CLIENT: Final = "inference-"
"""Prefix of a client's request id, which may be anything, even what looks like an order."""
_FAILED: Final = "error"
"""vLLM's finish reason of a request that the engine gave up."""
_WHOLE: Final = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.REPETITION)
"""Why a whole answer ends."""


class _LoadCounter(StatLoggerBase):
    """Keeps the scheduler's newest counts."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self.running = 0
        self.kv_usage = 0.0
        self.last_step_s = 0.0
        """When its last step ended, monotonic clock, s; also one that gave no token."""

    def record(self, scheduler_stats: Any, iteration_stats: Any, **_: Any) -> None:
        if scheduler_stats is not None:
            self.last_step_s = time.monotonic()
            self.running = scheduler_stats.num_running_reqs
            self.kv_usage = scheduler_stats.kv_cache_usage

    def log_engine_initialized(self) -> None: ...


def start_vllm(
    name: str, tier: Tier, entry: ChainEntry, settings: SpeculationSettings, model_path: Callable[[str], Path]
) -> VllmEngine:
    """Start the engine of one entry; block until its weights are loaded.

    Raises:
        EngineStartError: an argument that vLLM does not know, or that would be silently wrong.
        Exception: of any kind, from vLLM; `bring_up` finds the root cause where it happened in another process.
    """
    on_gpu = tier.gpu is not None
    for folder in drop_unwritable_caches(os.environ):
        logger.warning("tier %s cannot write to %s: this engine compiles anew at each start", name, folder)
    runner = runner_for(entry, on_gpu)
    # Each entry sets it anew: vLLM reads it for the config, and its processes inherit it.
    os.environ.update(runner_environment(runner))
    args = engine_args(name, tier, entry, settings, model_path)
    counters: list[_LoadCounter] = []

    def count_load(vllm_config: Any, engine_index: int = 0) -> _LoadCounter:
        counters.append(_LoadCounter(vllm_config, engine_index))
        return counters[-1]

    validate_api_server_args(server_namespace(args, entry))
    config = args.create_engine_config()
    check_interface(config, entry, runner, on_gpu)
    # Ray's pipeline gets vLLM's series as `ray_vllm_...`, and the registry of the process as `vllm:...`, which
    # `GET /metrics` shows. vLLM adds its own logger only where no other is given.
    loggers: list[Any] = [count_load, RayPrometheusStatLogger, PrometheusStatLogger]
    engine = AsyncLLM.from_vllm_config(config, stat_loggers=loggers, enable_log_requests=False)
    records, load = SpecRecords(), OutputLoad()
    watch_outputs(engine.output_processor, records, load)
    watch_refusals(engine)
    refuse_bad_grammars(engine.output_processor)
    # V2 without drafts (`v1/worker/gpu/sample/gumbel.py`); V1 has a generator that goes on from step to step.
    has_positions = runner == "v2" and entry.speculation is None
    return VllmEngine(engine, args, entry, counters, records, load, has_positions)


def watch_outputs(processor: OutputProcessor, records: SpecRecords, load: OutputLoad) -> None:
    """Take each engine output's record off before vLLM processes (and perhaps merges) the output.

    Also tell the HTTP request that an engine request is added for, if there is one, how that goes on; and put into the
    engine request in whose name it is, whichever of vLLM's routes made it.

    Args:
        processor: vLLM's.
        records: takes the records.
        load: takes the times of the outputs.
    """
    add, process = processor.add_request, processor.process_outputs
    runs: WeakKeyDictionary[RequestState, RunWatch] = WeakKeyDictionary()

    def adding(request: EngineCoreRequest, *args: Any, **kwargs: Any) -> None:
        if not processor.request_states:
            records.began_working()
        put_claim(request, current_claim())
        add(request, *args, **kwargs)
        if (run := current_run()) is not None:
            state = processor.request_states[request.request_id]
            # Several answers to one prompt are as many requests.
            run.admitted(state.prompt_len if state.request_index == 0 else 0)
            runs[state] = run

    def watched(outputs: list[EngineCoreOutput], made_s: float | None = None, *args: Any, **kwargs: Any) -> Any:
        under_way = []
        for output in outputs:
            state = processor.request_states.get(output.request_id)
            collector = None if state is None else state.queue
            run = None if state is None else runs.get(state)
            if state is not None and run is not None:
                under_way.append((run, output, state))
            records.take(output, collector)
            if run is not None and collector is not None and output.new_token_ids:
                run.token(len(output.new_token_ids), records.of(collector).busy_s, collector)
            if output.spec_decode_metrics is not None and collector is not None:
                output.spec_decode_metrics = ShownMetrics.of(output.spec_decode_metrics, records.of(collector))
            times = {event.type: event.timestamp for event in reversed(output.events or ())}  # the first of each type
            queued_s, scheduled_s = times.get(EngineCoreEventType.QUEUED), times.get(EngineCoreEventType.SCHEDULED)
            load.saw(queued_s, scheduled_s, time.monotonic() if made_s is None else made_s)
        processed = process(outputs, made_s, *args, **kwargs)
        for run, output, state in under_way:
            # vLLM forgets a request that has ended, by the engine or by a stop string.
            reason = FinishReason.STOP if output.finish_reason is None else output.finish_reason
            if state.request_id not in processor.request_states and reason in _WHOLE:
                run.finished(_ended(state, str(reason), records), state.queue)
        return processed

    processor.add_request, processor.process_outputs = adding, watched


def watch_refusals(engine: AsyncLLM) -> None:
    """Tell the HTTP request that an engine request is added for, if there is one, why the engine does not take it."""
    add = engine.add_request

    async def adding(*args: Any, **kwargs: Any) -> RequestOutputCollector:
        try:
            return await add(*args, **kwargs)
        except (VLLMError, ValueError) as error:
            if (run := current_run()) is not None:
                run.refusal = as_ours(engine, error)
            raise

    engine.add_request = adding


def _ended(state: RequestState, reason: str, records: SpecRecords) -> Finished:
    record = records.of(state.queue)
    waited_s = state.stats.scheduled_ts - state.stats.queued_ts if state.stats is not None else 0.0
    tokens = state.detokenizer.num_output_tokens() if state.detokenizer is not None else 0
    records.bill(record)
    waited_ms = max(0.0, 1000 * waited_s)
    engine_s = _engine_s(state.stats)
    return Finished(
        reason,
        state.prompt_len,
        tokens,
        waited_ms,
        record.stats(),
        record.busy_s,
        record.idle_s,
        engine_s,
        record.energy,
    )


def _engine_s(times: RequestStateStats | None) -> float | None:
    """Return the time from a request's first scheduling to its last token, s, by the scheduler's clock."""
    if times is None or not times.scheduled_ts or times.last_token_ts < times.scheduled_ts:
        return None
    return float(times.last_token_ts - times.scheduled_ts)


class ShownMetrics(RequestSpecDecodeMetrics):
    """vLLM's counts of a request's drafts, for the OpenAI routes' `metrics`, with what our record adds to them."""

    used: dict[str, Any]

    @classmethod
    def of(cls, theirs: RequestSpecDecodeMetrics, record: RequestRecord) -> ShownMetrics:
        """Return vLLM's counts of a request that has ended with its record."""
        shown = cls(**vars(theirs))
        shown.used = used_spec(record.stats())
        return shown

    def to_dict(self) -> dict[str, Any]:
        """See vLLM; its response model takes more keys."""
        return {**super().to_dict(), **self.used}


@dataclass(slots=True)
class VllmEngine:
    """A running `AsyncLLM` and what is needed to serve it."""

    _engine: AsyncLLM
    _args: AsyncEngineArgs
    _entry: ChainEntry
    _counters: list[_LoadCounter]
    _records: SpecRecords
    _output_load: OutputLoad
    _noise_has_positions: bool
    """Whether a seeded sample's noise depends on seed and position alone, and not on the steps before."""
    _drafts: DraftsChoice | None = None
    """As ordered last; None: as the entry says."""
    _app: asyncio.Future[Any] | None = None

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EngineItem, None]:
        """See `Engine.generate`."""
        with errors_as_ours(self._engine, VLLMError, ValueError):
            prompt, params = await self._prepare(request)
        prompt_ids: list[int] = prompt["prompt_token_ids"]
        admitted = Admitted(self._entry.name, pack_ids(prompt_ids))
        before: list[int] = []
        if request.resume is not None:
            request.resume.check(admitted.entry, admitted.prompt_ids)
            before = unpack_ids(request.resume.delivered_ids)
            if (reason := self._whole(before, params)) is not None:
                yield admitted
                yield Finished(reason, len(prompt_ids), 0, 0.0, SpecStats(), 0.0)
                return
            prompt, params = self._rest(prompt_ids, before, params)
        adding = asyncio.ensure_future(self._engine.add_request(_CLIENT + request.request_id, prompt, params))
        collector: RequestOutputCollector | None = None
        finished = False
        try:
            with errors_as_ours(self._engine, VLLMError, ValueError):
                collector = await asyncio.shield(adding)
            assert collector is not None
            record = self._records.of(collector)
            yield admitted
            texts = TokenTexts(self._decoder(prompt_ids + before))
            # Where it continues an answer, its thoughts are over: a parser that reads no prompt would not know.
            parser = None if request.begun else self._reasoning_parser()
            answer = AnswerTokens(parser, prompt_ids, before)
            signs = SignReader() if request.watch else None
            completion_tokens = 0
            while not finished:
                # vLLM merges all engine steps since the last item; the record keeps them apart.
                with errors_as_ours(self._engine, VLLMError):
                    output = await collector.get()
                completion = output.outputs[0]
                finished = output.finished
                if completion.finish_reason == _FAILED:
                    raise EngineError("engine_failed", "the engine gave up the request", status=500, retryable=True)
                completion_tokens += len(completion.token_ids)
                drafted = record.take_drafted(len(completion.token_ids))
                _push(texts, completion, drafted, signs, shows_logprobs=request.logprobs)
                released = texts.release(completion.text, finished)
                if released:
                    ids = [token.token_id for token in released]
                    seen = NO_SIGNS if signs is None else signs.signs
                    yield TokenStep(answer.of(released), ids, record.busy_s, seen)
            self._records.bill(record)
            yield _finished(output, completion, len(prompt_ids), completion_tokens, record)
        finally:
            # A request whose adding was interrupted is in the engine nevertheless: wait for its handle, then abort.
            if not finished and not self._engine.errored:
                if collector is None and not (adding.done() and adding.exception()):
                    collector = await adding
                if collector is not None:
                    await self._engine.abort(collector.request_id, internal=True)

    async def _prepare(self, request: GenerationRequest) -> tuple[Any, SamplingParams]:
        """Return the tokens and sampling parameters that the same chat has on the OpenAI routes.

        vLLM applies the tier's template and the model's defaults, and renders and tokenizes outside the event loop. It
        refuses a chat before that if its characters cannot be few enough tokens.
        """
        state = (await self._fastapi()).state
        messages = [{"role": message.role, "content": message.content} for message in request.messages]
        if request.begun:
            messages.append({"role": "assistant", "content": request.begun})
        chat = ChatCompletionRequest(
            messages=messages,
            add_generation_prompt=not request.begun,
            continue_final_message=bool(request.begun),
            temperature=request.temperature,
            top_p=request.top_p,
            seed=request.seed,
            stop=list(request.stop),
            logprobs=request.logprobs or request.watch,
            stream=True,
            vllm_xargs=request.spec.to_arguments(request.category),
        )
        rendered = await state.online_renderer.render_chat(chat)
        if isinstance(rendered, ErrorResponse):
            raise EngineError("bad_request", rendered.error.message, status=rendered.error.code, retryable=False)
        _, [prompt] = rendered
        size, most = len(prompt["prompt_token_ids"]), self._engine.model_config.max_model_len
        room = most - size
        if room < 1 or (request.max_tokens_is_explicit and request.max_tokens > room):
            raise EngineError(
                "prompt_too_long",
                f"the prompt has {size} tokens and max_tokens is {request.max_tokens}; together they may be "
                f"at most max_model_len = {most}",
                status=400,
                retryable=False,
            )
        serving = state.openai_serving_chat
        limit = get_max_tokens(
            most, request.max_tokens, size, serving.default_sampling_params, serving.override_max_tokens
        )
        return prompt, chat.to_sampling_params(limit, serving.default_sampling_params)

    def _whole(self, before: list[int], params: SamplingParams) -> str | None:
        """Return why an answer of these tokens has ended; None: it has not.

        That is so if the first replica was lost after its last token and before it could say that it was the last.
        """
        ended = params.clone()
        inputs = self._engine.input_processor
        ended.update_from_generation_config(inputs.generation_config_fields, inputs.renderer.get_eos_token_id())
        if before[-1] in ended.all_stop_token_ids:
            return "stop"
        text = self._engine.get_tokenizer().decode(before, skip_special_tokens=True) if params.stop else ""
        if any(stop in text for stop in params.stop or ()):
            return "stop"
        return "length" if len(before) >= (params.max_tokens or 0) else None

    def _rest(
        self, prompt_ids: list[int], before: list[int], params: SamplingParams
    ) -> tuple[TokensPrompt, SamplingParams]:
        """Return the tokens and sampling parameters for what follows `before`."""
        params.max_tokens = (params.max_tokens or 0) - len(before)
        if params.seed is not None and not self._noise_has_positions:
            # Its noise begins anew, and the same noise twice in an answer would make it another distribution.
            params.seed = zlib.crc32(pack_ids([params.seed % 2**32, len(before)]))
        return {"prompt_token_ids": prompt_ids + before}, params

    def _reasoning_parser(self) -> ReasoningParser | None:
        name = self._engine.vllm_config.structured_outputs_config.reasoning_parser
        if not name:
            return None
        parser: ReasoningParser = ReasoningParserManager.get_reasoning_parser(name)(self._engine.get_tokenizer())
        return parser

    def _decoder(self, prompt_ids: list[int]) -> Callable[[int], str]:
        tokenizer = self._engine.get_tokenizer()._tokenizer
        # Primed with the prompt like vLLM's own detokenizer, so that the pieces add up to its text.
        stream = DecodeStream(ids=prompt_ids, skip_special_tokens=True)
        return lambda token_id: stream.step(tokenizer, token_id) or ""

    async def http_app(self) -> ASGIApp:
        """See `Engine.http_app`: vLLM's own FastAPI application, as `vllm serve` builds it."""
        app: ASGIApp = await self._fastapi()
        return app

    async def _fastapi(self) -> Any:
        if self._app is None:
            self._app = asyncio.ensure_future(self._build_app())
        return await asyncio.shield(self._app)

    async def _build_app(self) -> Any:
        args = server_namespace(self._args, self._entry)
        tasks = await self._engine.get_supported_tasks()
        fastapi = build_app(args, tasks, self._engine.model_config)
        await init_app_state(self._engine, fastapi.state, args, tasks)
        # vLLM's handlers stop its HTTP server when the engine has died; here `engine_watch.py` ends the replica.
        fastapi.state.server = SimpleNamespace(should_exit=False)
        return fastapi

    @property
    def dead(self) -> bool:
        """See `Engine.dead`."""
        errored: bool = self._engine.errored
        return errored

    async def died(self) -> None:
        """See `Engine.died`. vLLM's task that takes the engine's outputs ends with the engine."""
        handler = self._engine.output_handler
        assert handler is not None, "it has not answered yet"
        await asyncio.wait({handler})

    async def check_health(self) -> None:
        """See `Engine.check_health`."""
        await self._engine.check_health()

    def last_step_s(self) -> float:
        """See `Engine.last_step_s`."""
        return max((counter.last_step_s for counter in self._counters), default=0.0)

    def kill(self) -> None:
        """See `Engine.kill`. With the workers, which may hang with it."""
        for process in self._engine.engine_core.resources.engine_manager.processes:
            kill_process_tree(process.pid)

    def load(self) -> EngineLoad:
        """See `Engine.load`.

        The scheduler reports its counts after each step, and no step follows when the last request is aborted. So they
        are capped by the requests that the engine's client still knows.
        """
        unfinished = self._engine.output_processor.get_num_unfinished_requests()
        running = min(unfinished, sum(counter.running for counter in self._counters))
        kv_usage = max((counter.kv_usage for counter in self._counters), default=0.0) if unfinished else 0.0
        now_s, seen = time.monotonic(), self._output_load
        return EngineLoad(running, unfinished - running, kv_usage, seen.queue_wait_ms(now_s), seen.prompts(now_s))

    def categories(self) -> Mapping[str, DraftCount]:
        """See `Engine.categories`."""
        return self._records.categories

    def own_drafts(self) -> DraftCount:
        """See `Engine.own_drafts`."""
        return self._records.own_drafts

    def totals(self) -> Totals:
        """See `Engine.totals`."""
        return self._records.totals

    def busy_now_s(self) -> float:
        """See `Engine.busy_now_s`."""
        return self._records.busy_now_s(bool(self._engine.output_processor.get_num_unfinished_requests()))

    def use_meter(self, meter: EnergyBilling) -> None:
        """See `Engine.use_meter`."""
        self._records.meter = meter

    def up_s(self) -> float:
        """See `Engine.up_s`."""
        return self._records.up_s

    def learned(self) -> Learned:
        """See `Engine.learned`."""
        return self._records.learned

    def metrics(self) -> Iterable[Metric]:
        """See `Engine.metrics`. vLLM has them in the registry of the process, beside those of its HTTP layers."""
        return (metric for metric in REGISTRY.collect() if metric.name.startswith(VLLMS_METRICS))

    async def use_drafts(self, drafts: DraftsChoice) -> None:
        """See `Engine.use_drafts`. The order is a request that the scheduler sees and that is aborted at once."""
        if drafts == self._drafts:
            return
        prompt: TokensPrompt = {"prompt_token_ids": [0]}
        try:
            order = await self._engine.add_request(f"{ORDER_PREFIX}{drafts}", prompt, SamplingParams(max_tokens=1))
            await self._engine.abort(order.request_id, internal=True)
        except VLLMError as error:
            raise EngineError("engine_failed", str(error), status=500, retryable=True) from error
        self._drafts = drafts

    async def shutdown(self) -> None:
        """See `Engine.shutdown`."""
        await asyncio.to_thread(self._engine.shutdown)


def _push(
    texts: TokenTexts,
    completion: CompletionOutput,
    drafted: list[Drafted],
    signs: SignReader | None,
    *,
    shows_logprobs: bool,
) -> None:
    for position, token_id in enumerate(completion.token_ids):
        logprob = completion.logprobs[position][token_id].logprob if completion.logprobs else None
        if signs is not None:
            signs.add(token_id, logprob, *drafted[position])
        texts.push(token_id, logprob if shows_logprobs else None, *drafted[position])


def _finished(
    output: RequestOutput, completion: CompletionOutput, prompt_tokens: int, count: int, record: RequestRecord
) -> Finished:
    times = output.metrics
    waited = times.scheduled_ts - times.queued_ts if times is not None and times.scheduled_ts else 0.0
    return Finished(
        completion.finish_reason or "stop",
        prompt_tokens,
        count,
        max(0.0, waited * 1000),
        record.stats(),
        record.busy_s,
        record.idle_s,
        _engine_s(times),
        record.energy,
    )
