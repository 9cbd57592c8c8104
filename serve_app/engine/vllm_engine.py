"""vLLM behind the engine interface. The only module that imports vLLM, and only inside an engine replica.

What it adds over `AsyncLLM`: engine steps are kept apart (vLLM merges the outputs of several steps when the consumer
lags, and then nobody can tell accepted drafts from sampled tokens), and each token has its own text.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp
from tokenizers.decoders import DecodeStream
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import FrontendArgs
from vllm.entrypoints.launchers.launcher import validate_api_server_args
from vllm.exceptions import VLLMValidationError
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
from vllm.v1.engine.output_processor import RequestOutputCollector
from vllm.v1.metrics.loggers import StatLoggerBase

from router.tiers import Speculation, Step, Tier
from serve_app.engine.draft_flags import DraftFlags
from serve_app.engine.interface import (
    Admitted,
    EngineError,
    EngineItem,
    EngineLoad,
    EngineStartError,
    Finished,
    GenerationRequest,
    SpecStats,
    Token,
)
from serve_app.engine.process_output import ProcessOutput
from serve_app.engine.token_text import TokenTexts

# n-gram lookup: the shortest and longest match in the prompt. Two tokens already repeat by chance in prose; four are
# enough to follow copied text (vLLM's `prompt_lookup_min` and `prompt_lookup_max`).
_NGRAM = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}


class _LoadCounter(StatLoggerBase):
    """Keeps the scheduler's last running count."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self.running = 0

    def record(self, scheduler_stats: Any, iteration_stats: Any, **_: Any) -> None:
        if scheduler_stats is not None:
            self.running = scheduler_stats.num_running_reqs

    def log_engine_initialized(self) -> None: ...


@dataclass(slots=True)
class _Steps:
    """Engine steps of one request, in order, as the consumer has not taken them yet."""

    ready: asyncio.Event = field(default_factory=asyncio.Event)
    outputs: list[RequestOutput | Exception] = field(default_factory=list)

    def tap(self, collector: RequestOutputCollector) -> None:
        """Take what the engine puts into vLLM's collector, one entry a step, before the collector merges it."""
        early = collector.output
        collector.put = self.put
        if early is not None:
            self.put(early)

    def put(self, output: RequestOutput | Exception) -> None:
        self.outputs.append(output)
        self.ready.set()

    async def drain(self) -> list[RequestOutput]:
        """All steps since the last call; waits for at least one."""
        await self.ready.wait()
        self.ready.clear()
        outputs, self.outputs = self.outputs, []
        for output in outputs:
            if isinstance(output, Exception):
                raise output
        return outputs


def server_args(step: Step) -> dict[str, Any]:
    """Those of the step's arguments that are for vLLM's OpenAI server (tool call parser, chat template, ...)."""
    return {key: value for key, value in step.engine_args.items() if key in vars(FrontendArgs())}


def engine_args(name: str, tier: Tier, step: Step, model_path: Callable[[str], Path]) -> AsyncEngineArgs:
    """vLLM's engine arguments for one step of a tier.

    Raises:
        EngineStartError: an argument that vLLM does not know.
    """
    speculation = step.speculation
    arguments: dict[str, Any] = {
        "model": str(model_path(step.target)),
        "served_model_name": [name, step.target],
        "max_model_len": step.max_model_len,
        "quantization": step.quantization,
        "tensor_parallel_size": max(1, tier.gpus),
        "speculative_config": _speculative_config(speculation, model_path) if speculation else None,
        **{key: value for key, value in step.engine_args.items() if key not in server_args(step)},
    }
    if speculation:
        arguments.setdefault("per_request_spec_decode_metrics", "detailed")
    try:
        return AsyncEngineArgs(**arguments)
    except TypeError as error:
        raise EngineStartError(f"engine_args: {error}") from error


def _server_namespace(args: AsyncEngineArgs, step: Step) -> argparse.Namespace:
    return argparse.Namespace(**(vars(FrontendArgs()) | vars(args) | server_args(step)))


def _speculative_config(speculation: Speculation, model_path: Callable[[str], Path]) -> dict[str, Any]:
    config: dict[str, Any] = {"method": speculation.method, "num_speculative_tokens": speculation.k_max}
    if speculation.draft is not None:
        config["model"] = str(model_path(speculation.draft))
    if speculation.method == "ngram":
        config |= _NGRAM
    return config


def start_vllm(name: str, tier: Tier, step: Step, model_path: Callable[[str], Path]) -> VllmEngine:
    """Start the engine of one step; blocks until its weights are loaded.

    Raises:
        EngineStartError: with the root cause, also when it happened in a process of vLLM.
    """
    args = engine_args(name, tier, step, model_path)
    counters: list[_LoadCounter] = []

    def count_load(vllm_config: Any, engine_index: int = 0) -> _LoadCounter:
        counters.append(_LoadCounter(vllm_config, engine_index))
        return counters[-1]

    output = ProcessOutput.begin()
    try:
        validate_api_server_args(_server_namespace(args, step))
        config = args.create_engine_config()
        engine = AsyncLLM.from_vllm_config(config, stat_loggers=[count_load], enable_log_requests=False)
    except (ValueError, RuntimeError, OSError, ImportError, NotImplementedError, AssertionError, KeyError) as error:
        raise EngineStartError(output.root_cause() or f"{type(error).__name__}: {error}") from error
    return VllmEngine(engine, args, step, counters)


@dataclass(slots=True)
class VllmEngine:
    """A running `AsyncLLM` and what is needed to serve it."""

    _engine: AsyncLLM
    _args: AsyncEngineArgs
    _step: Step
    _counters: list[_LoadCounter]

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EngineItem, None]:
        """See `Engine.generate`."""
        prompt_ids, params = self._prepare(request)
        assert params.max_tokens is not None
        steps = _Steps()
        adding = asyncio.ensure_future(
            self._engine.add_request(request.request_id, {"prompt_token_ids": prompt_ids}, params)
        )
        collector: RequestOutputCollector | None = None
        finished = False
        try:
            collector = await asyncio.shield(adding)
            steps.tap(collector)
            yield Admitted(len(prompt_ids), params.max_tokens, self._step.name)
            texts = TokenTexts(self._decoder(prompt_ids))
            flags = DraftFlags()
            completion_tokens = 0
            while not finished:
                tokens: list[Token] = []
                for output in await steps.drain():
                    completion = output.outputs[0]
                    finished = output.finished
                    completion_tokens += len(completion.token_ids)
                    _push(texts, completion, flags.step(len(completion.token_ids), _accepted(completion)))
                    tokens += texts.release(completion.text, finished)
                if tokens:
                    yield tokens
            yield _finished(output, completion, len(prompt_ids), completion_tokens, self._spec_stats(completion, flags))
        except VLLMValidationError as error:
            raise EngineError("bad_request", str(error), status=400, retryable=False) from error
        except EngineDeadError as error:
            raise EngineError("engine_dead", "the engine has died", status=503, retryable=True) from error
        except EngineGenerateError as error:
            raise EngineError("engine_failed", str(error), status=500, retryable=True) from error
        finally:
            # A request whose adding was interrupted is in the engine all the same: wait for its handle, then abort.
            if not finished and not self._engine.errored:
                if collector is None and not (adding.done() and adding.exception()):
                    collector = await adding
                if collector is not None:
                    await self._engine.abort(collector.request_id, internal=True)

    def _prepare(self, request: GenerationRequest) -> tuple[list[int], SamplingParams]:
        tokenizer = self._engine.get_tokenizer()
        chat = [{"role": message.role, "content": message.content} for message in request.messages]
        prompt_ids: list[int] = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        room = self._step.max_model_len - len(prompt_ids)
        if room < 1 or (request.max_tokens_is_wish and request.max_tokens > room):
            raise EngineError(
                "prompt_too_long",
                f"the prompt has {len(prompt_ids)} tokens and max_tokens is {request.max_tokens}; together they may be "
                f"at most max_model_len = {self._step.max_model_len}",
                status=400,
                retryable=False,
            )
        params = SamplingParams(
            max_tokens=min(request.max_tokens, room),
            temperature=request.temperature,
            top_p=request.top_p,
            seed=request.seed,
            stop=list(request.stop),
            logprobs=0 if request.logprobs else None,
            output_kind=RequestOutputKind.DELTA,
        )
        return prompt_ids, params

    def _spec_stats(self, completion: CompletionOutput, flags: DraftFlags) -> SpecStats:
        record = completion.spec_decode_metrics
        if record is not None:
            drafted = [(d, a) for d, a in zip(record.per_step_drafted, record.per_step_accepted, strict=True) if d]
            return SpecStats(len(drafted), sum(d for d, _ in drafted), sum(a for _, a in drafted))
        if self._step.speculation is not None:
            # A stop string ended the answer: vLLM finds it outside of the engine core, whose record is then lost.
            return SpecStats(steps=None, draft_tokens=None, accepted_tokens=flags.accepted)
        return SpecStats()

    def _decoder(self, prompt_ids: list[int]) -> Callable[[int], str]:
        tokenizer = self._engine.get_tokenizer()._tokenizer
        # Primed with the prompt as vLLM's own detokenizer is, so that pieces add up to its text.
        stream = DecodeStream(ids=prompt_ids, skip_special_tokens=True)
        return lambda token_id: stream.step(tokenizer, token_id) or ""

    async def openai_app(self) -> ASGIApp:
        """See `Engine.openai_app`: vLLM's own FastAPI application, as `vllm serve` builds it."""
        args = _server_namespace(self._args, self._step)
        tasks = await self._engine.get_supported_tasks()
        fastapi = build_app(args, tasks, self._engine.model_config)
        await init_app_state(self._engine, fastapi.state, args, tasks)
        app: ASGIApp = fastapi
        return app

    async def check_health(self) -> None:
        """See `Engine.check_health`."""
        await self._engine.check_health()

    def load(self) -> EngineLoad:
        """See `Engine.load`.

        The scheduler tells its counts after each step, and no step follows when the last request is aborted; so they
        are capped by the requests that the engine's client still knows.
        """
        unfinished = self._engine.output_processor.get_num_unfinished_requests()
        running = min(unfinished, sum(counter.running for counter in self._counters))
        return EngineLoad(running, unfinished - running)

    async def shutdown(self) -> None:
        """See `Engine.shutdown`."""
        await asyncio.to_thread(self._engine.shutdown)


def _push(texts: TokenTexts, completion: CompletionOutput, accepted: int) -> None:
    """One engine step, whose first `accepted` tokens were drafted."""
    for position, token_id in enumerate(completion.token_ids):
        logprob = completion.logprobs[position][token_id].logprob if completion.logprobs else None
        texts.push(token_id, logprob, spec_accepted=position < accepted)


def _accepted(completion: CompletionOutput) -> int | None:
    """The engine's count of accepted drafts of the whole request; it comes with the last step only."""
    record = completion.spec_decode_metrics
    return None if record is None else sum(size * count for size, count in enumerate(record.histogram))


def _finished(
    output: RequestOutput, completion: CompletionOutput, prompt_tokens: int, count: int, spec: SpecStats
) -> Finished:
    times = output.metrics
    waited = times.scheduled_ts - times.queued_ts if times is not None and times.scheduled_ts else 0.0
    return Finished(completion.finish_reason or "stop", prompt_tokens, count, max(0.0, waited * 1000), spec)
