"""vLLM's engine in this process, with eyes on its model runner. Import it after the shim."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

from vllm import SamplingParams, envs
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.worker.gpu.warmup import run_mixed_prefill_decode_warmup

from router.registry import Speculation
from serve_app.engine.vllm import ngram_lookup
from serve_app.engine.vllm.controller_config import ControllerConfig
from serve_app.engine.vllm.scheduler import DepthScheduler
from serve_app.engine.vllm.step_record import RECORD_KEY
from serve_app.speculation.settings import SpeculationSettings
from tests.support.v2_on_cpu.engine import Ask, Batch, EngineSpec, Reply, Step

OUR_WORKER = "tests.support.v2_on_cpu.worker.V2CpuWorker"


class ObservedEngine:
    """One engine; `run` and `info` are called by the client."""

    def __init__(self, spec: EngineSpec) -> None:
        self._engine = LLMEngine.from_engine_args(EngineArgs(**_arguments(spec)))
        self._core = self._engine.engine_core.engine_core
        self._worker = self._core.model_executor.driver_worker.worker
        self._runner = self._worker.model_runner
        self._scheduler = self._core.scheduler
        self._steps: list[dict[str, Any]] = []
        self._records: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._preemptions = 0
        self._scripts: dict[str, list[int]] = {}
        self._by_output: dict[int, dict[str, Any]] = {}
        if hasattr(self._runner, "draft_tokens_handler"):
            self._watch_runner()
        if isinstance(self._scheduler, DepthScheduler):
            self._watch_records()
            self._script_controller()
        self._watch_preemption()

    def info(self) -> dict[str, Any]:
        """Return the classes that run."""
        states = getattr(self._runner, "req_states", None)  # V1 has none
        return {
            "runner": type(self._runner).__module__,
            "speculator": type(getattr(self._runner, "speculator", None)).__name__,
            "scheduler": type(self._scheduler).__name__,
            "worker": type(self._worker).__name__,
            "asynchronous": bool(self._scheduler.scheduler_config.async_scheduling),
            # vLLM has a buffer for writes to texts in the host's memory.
            "texts": "on the device" if states and states.all_token_ids.write_contents is None else "on the host",
        }

    def run(self, asks: list[Ask]) -> Batch:
        """See `V2Engine.run`."""
        self._steps.clear()
        self._records.clear()
        self._scripts.clear()
        self._preemptions = 0
        ids = [
            self._engine.add_request(str(place), ask.prompt, _params(ask), arrival_time=float(place))
            for place, ask in enumerate(asks)
        ]
        self._scripts |= {request_id: list(ask.depths) for request_id, ask in zip(ids, asks, strict=True) if ask.depths}
        place_of = {request_id: place for place, request_id in enumerate(ids)}
        tokens: list[list[int]] = [[] for _ in asks]
        texts = [""] * len(asks)
        reasons: list[str | None] = [None] * len(asks)
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                place = int(output.request_id)
                completion = output.outputs[0]
                tokens[place], texts[place] = list(completion.token_ids), completion.text
                reasons[place] = completion.finish_reason
                after = asks[place].abort_after
                if after is not None and not output.finished and len(tokens[place]) >= after:
                    self._engine.abort_request([output.request_id])
        self._drain()
        replies = [
            Reply(tokens[place], texts[place], reasons[place], self._records[request_id])
            for place, request_id in enumerate(ids)
        ]
        return Batch(replies, [_step(entry, place_of) for entry in self._steps], self._preemptions)

    def warm_up(self) -> bool:
        """Run one of the warm-ups of a GPU worker's start, of which the scheduler knows nothing; return whether it ran.

        The other one, with every sampling feature, has kernels that the interpreter refuses.
        """
        execute, sample = self._worker.execute_model, self._worker.sample_tokens
        return bool(run_mixed_prefill_decode_warmup(self._runner, execute, sample, 8))

    def stop(self) -> None:
        """End the engine, so that the process can start another."""
        self._core.shutdown()
        cleanup_dist_env_and_memory()

    def _drain(self) -> None:
        """Finish the steps that asynchronous scheduling has under way, so that the next batch begins alone."""
        for _ in range(4):
            self._engine.engine_core.get_output()
        if self._scheduler.running or self._scheduler.waiting:
            raise RuntimeError("requests are left over")

    def _watch_runner(self) -> None:
        runner, speculator = self._runner, self._runner.speculator
        execute, sample = runner.execute_model, runner.sample

        def execute_model(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            if scheduler_output.total_num_scheduled_tokens and not kwargs.get("dummy_run"):
                entry = {
                    "k": scheduler_output.num_spec_tokens_to_schedule,
                    "scheduled": dict(scheduler_output.num_scheduled_tokens),
                    "drafts": {key: len(ids) for key, ids in scheduler_output.scheduled_spec_decode_tokens.items()},
                    "forwards": [],
                    "verified": {},
                    "proposed": {},
                    "times": None,
                }
                self._steps.append(entry)
                self._by_output[id(scheduler_output)] = entry
            return execute(scheduler_output, *args, **kwargs)

        def sampled(hidden_states: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
            output = sample(hidden_states, batch, *args, **kwargs)
            rows = batch.cu_num_logits_np
            for row, (request_id, count) in enumerate(zip(batch.req_ids, output[1].tolist(), strict=True)):
                if count:
                    verified = int(rows[row + 1] - rows[row]) - 1
                    self._steps[-1]["verified"][request_id] = verified, count - 1
            return output

        runner.execute_model, runner.sample = execute_model, sampled
        if hasattr(speculator, "_run_model"):
            run_model = speculator._run_model

            def draft_forward(first: Any, *args: Any, **kwargs: Any) -> Any:
                if self._steps:
                    self._steps[-1]["forwards"].append(first if isinstance(first, int) else len(first))
                return run_model(first, *args, **kwargs)

            speculator._run_model = draft_forward
        hand_over = runner.draft_tokens_handler.set_draft_tokens

        def set_draft_tokens(batch: Any, drafts: Any, *args: Any, **kwargs: Any) -> Any:
            if self._steps:
                self._steps[-1]["proposed"] = dict(zip(batch.req_ids, drafts.tolist(), strict=True))
            return hand_over(batch, drafts, *args, **kwargs)

        runner.draft_tokens_handler.set_draft_tokens = set_draft_tokens

    def _watch_records(self) -> None:
        update = self._scheduler.update_from_output

        def update_from_output(scheduler_output: Any, runner_output: Any) -> Any:
            times = getattr(runner_output, "power_lever_times", None)
            if times is not None and id(scheduler_output) in self._by_output:
                self._by_output.pop(id(scheduler_output))["times"] = times._asdict()
            outputs = update(scheduler_output, runner_output)
            for group in outputs.values():
                for output in group.outputs:
                    record = output.kv_transfer_params[RECORD_KEY]._asdict()
                    self._records[output.request_id].append(record | {"tokens": len(output.new_token_ids)})
                    output.kv_transfer_params = None
            return outputs

        self._scheduler.update_from_output = update_from_output

    def _script_controller(self) -> None:
        """Have requests with depths of their own get these, whatever the controller decides."""
        controller = self._scheduler._controller
        decide = controller.decide

        def scripted(decoding: Any, prefill_tokens: int) -> Any:
            decisions = decide(decoding, prefill_tokens)
            for request_id in decisions.keys() & self._scripts.keys():
                script = self._scripts[request_id]
                k = script.pop(0) if len(script) > 1 else script[0]
                decisions[request_id] = replace(decisions[request_id], k=k)
            return decisions

        controller.decide = scripted

    def _watch_preemption(self) -> None:
        preempt = self._scheduler._preempt_request

        def preempt_request(*args: Any, **kwargs: Any) -> Any:
            self._preemptions += 1
            return preempt(*args, **kwargs)

        self._scheduler._preempt_request = preempt_request


def _step(entry: dict[str, Any], place_of: dict[str, int]) -> Step:
    def by_place(values: dict[str, Any]) -> dict[int, Any]:
        return {place_of[request_id]: value for request_id, value in values.items()}

    return Step(
        entry["k"],
        by_place(entry["scheduled"]),
        by_place(entry["drafts"]),
        by_place(entry["verified"]),
        tuple(entry["forwards"]),
        by_place(entry["proposed"]),
        entry["times"],
    )


def _params(ask: Ask) -> SamplingParams:
    extra = dict(ask.arguments)
    if ask.k is not None:
        extra["speculation_k"] = ask.k
    return SamplingParams(
        temperature=ask.temperature,
        seed=ask.seed,
        max_tokens=ask.max_tokens,
        stop=list(ask.stop) or None,
        ignore_eos=ask.regex is None,
        structured_outputs=StructuredOutputsParams(regex=ask.regex) if ask.regex else None,
        extra_args=extra or None,
        output_kind=RequestOutputKind.CUMULATIVE,
    )


def _arguments(spec: EngineSpec) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "model": str(spec.models / "target"),
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": spec.max_model_len,
        "max_num_seqs": spec.max_num_seqs,
        "max_num_batched_tokens": spec.max_num_batched_tokens,
        "kv_cache_memory_bytes": 64 << 20,
        "num_gpu_blocks_override": spec.kv_blocks,
        "block_size": 32,
        "seed": 0,
        "disable_log_stats": True,
        "async_scheduling": spec.asynchronous,
    }
    if spec.method is None:
        return arguments
    config: dict[str, Any] = {"method": spec.method, "num_speculative_tokens": spec.k_max}
    if spec.draft is not None:
        config["model"] = str(spec.models / spec.draft)
    if spec.method in ("ngram", "ngram_gpu"):
        config |= {"prompt_lookup_min": ngram_lookup.SHORTEST, "prompt_lookup_max": ngram_lookup.LONGEST}
    arguments["speculative_config"] = config
    if spec.ours:
        speculation = Speculation(
            method=spec.method, draft=spec.draft, k_max=spec.k_max, floor=0.1 if spec.composite else None
        )
        arguments["scheduler_cls"] = "serve_app.engine.vllm.scheduler.DepthScheduler"
        if envs.VLLM_USE_V2_MODEL_RUNNER:
            arguments["worker_cls"] = OUR_WORKER
        arguments["additional_config"] = ControllerConfig(SpeculationSettings(), speculation)
    return arguments
