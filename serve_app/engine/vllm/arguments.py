"""The arguments of vLLM's engine and of its OpenAI server, for one chain entry of a tier."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import FrontendArgs

from cluster.catalogue.memory import default_utilization
from cluster.catalogue.types import catalogue
from router.registry import ChainEntry, Runner, Speculation, Tier
from serve_app.engine.interface import EngineStartError
from serve_app.engine.vllm import ngram_lookup
from serve_app.engine.vllm.controller_config import ControllerConfig
from serve_app.engine.vllm.decode_graphs import MOST_TOKENS, capture_sizes, depth_schedule
from serve_app.engine.vllm.runner import runner_for
from serve_app.speculation.settings import EngineFacts, SpeculationSettings

_NGRAM: Final = {"prompt_lookup_min": ngram_lookup.SHORTEST, "prompt_lookup_max": ngram_lookup.LONGEST}

_SCHEDULER: Final = "serve_app.engine.vllm.fair_scheduler.FairScheduler"
_DRAFTING_SCHEDULER: Final = "serve_app.engine.vllm.scheduler.DepthScheduler"
_BLACKWELL: Final = 10
"""Compute capability of B200, major."""
_SEQUENCES_A_REQUEST: Final = 4
"""Sequences that a request may have on average (`n`, and several prompts in one request). vLLM answers 503 to more than
this many times `max_ongoing_requests`; without a bound it would queue them all."""


def server_args(entry: ChainEntry) -> dict[str, Any]:
    """Return those of the entry's arguments that vLLM's OpenAI server takes (tool call parser, chat template, ...)."""
    return {key: value for key, value in entry.engine_args.items() if key in vars(FrontendArgs())}


def engine_args(
    name: str, tier: Tier, entry: ChainEntry, settings: SpeculationSettings, model_path: Callable[[str], Path]
) -> AsyncEngineArgs:
    """Return the arguments of vLLM's engine.

    Raises:
        EngineStartError: an argument that vLLM does not know.
    """
    speculation = entry.speculation
    runner = runner_for(entry, tier.gpu is not None)
    arguments: dict[str, Any] = {
        "model": str(model_path(entry.target)),
        "served_model_name": [name, entry.target],
        "max_model_len": entry.max_model_len,
        "quantization": entry.quantization,
        "tensor_parallel_size": tier.tensor_parallel,
        "scheduler_cls": _SCHEDULER,
        "scheduling_policy": "priority",  # in the order that `fair_scheduler.py` gives the requests
        "max_num_queued_reqs": _SEQUENCES_A_REQUEST * tier.max_ongoing_requests,
        **_hardware(tier, entry),
        **{key: value for key, value in entry.engine_args.items() if key not in server_args(entry)},
    }
    worker = _worker(tier, speculation, runner)
    if worker is not None:
        arguments["worker_cls"] = worker
    if speculation is not None:
        arguments |= {
            "scheduler_cls": _DRAFTING_SCHEDULER,
            "speculative_config": _speculative_config(speculation, runner, model_path),
            "additional_config": ControllerConfig(settings, speculation, _facts(tier, speculation, arguments, runner)),
        }
        arguments.setdefault("per_request_spec_decode_metrics", "detailed")
        if runner == "v2" and tier.gpu is not None:
            sizes = capture_sizes(speculation.k_max, tier.most_sequences(entry))
            compilation = {"cudagraph_capture_sizes": sizes} if not _says_sizes(arguments) else {}
            arguments["compilation_config"] = {**compilation, **arguments.get("compilation_config", {})}
    try:
        return AsyncEngineArgs(**arguments)
    except KeyError as error:
        raise EngineStartError(f"engine_args: vLLM has no {error}") from error
    except (TypeError, ValueError) as error:
        # pydantic's ValidationError is a ValueError, and names the nested key.
        raise EngineStartError(f"engine_args: {error}") from error


def server_namespace(args: AsyncEngineArgs, entry: ChainEntry) -> argparse.Namespace:
    """Return the parsed command line of `vllm serve` with these arguments."""
    return argparse.Namespace(**(vars(FrontendArgs()) | vars(args) | server_args(entry)))


def _hardware(tier: Tier, entry: ChainEntry) -> dict[str, Any]:
    """Return what a tier's hardware decides. An entry's `engine_args` may say otherwise."""
    if tier.gpu is None:
        return {}
    gpu = catalogue().gpus.get(tier.gpu)
    jit = gpu is not None and int(gpu.capability) == _BLACKWELL and "attention_config" not in entry.engine_args
    return {
        # Workers in processes of vLLM's own, never Ray's actors: Ray gave this replica its GPUs.
        "distributed_executor_backend": "mp" if tier.tensor_parallel > 1 else "uni",
        # vLLM's default is up to 1024; buffers for logits and CUDA graphs grow with it.
        "max_num_seqs": tier.most_sequences(entry),
        # Less than the share, as each neighbour's CUDA context lies outside: with the shares themselves the last engine
        # on a full card would not start.
        **({"gpu_memory_utilization": default_utilization(tier)} if tier.gpus < 1 else {}),
        # On these cards vLLM prefers FlashInfer's attention, which runs nvcc, and asks nobody whether there is one
        # (platforms/cuda.py:153-166). This is its next choice.
        **({"attention_backend": "FLASH_ATTN"} if jit else {}),
    }


def _worker(tier: Tier, speculation: Speculation | None, runner: Runner) -> str | None:
    """Return the class of the workers; None: vLLM's own."""
    both_ways = speculation is not None and speculation.drafts_both_ways
    if tier.gpu is None:
        return f"serve_app.engine.vllm.cpu_worker.{'Composite' if both_ways else 'Patched'}CpuWorker"
    if runner == "v2":
        return "serve_app.engine.vllm.gpu_worker.DepthGpuWorker" if speculation is not None else None
    return "serve_app.engine.vllm.composite_drafts.CompositeGpuWorker" if both_ways else None


def _says_sizes(arguments: Mapping[str, Any]) -> bool:
    """Return whether the entry itself says which steps have CUDA graphs, or that none has one.

    vLLM's optimization levels 0 and 1 have none for whole steps (config/vllm.py:261, 282).
    """
    compilation = arguments.get("compilation_config") or {}
    said = {"cudagraph_capture_sizes", "max_cudagraph_capture_size", "cudagraph_mode"}
    no_whole_steps = arguments.get("enforce_eager") or arguments.get("optimization_level") in (0, 1)
    return bool(no_whole_steps or said & {*arguments, *compilation})


def _facts(tier: Tier, speculation: Speculation, arguments: Mapping[str, Any], runner: Runner) -> EngineFacts:
    """Return which decode steps run in a full CUDA graph, and what a step's drafting costs.

    On V2 those of each depth (`decode_graphs.py`), on V1 those in which all requests verify `k_max` drafts. For an
    entry that says its own graph mode or sizes none is assumed: the controller then learns what steps take without
    that help. The kernels of `ngram_gpu` make `k_max` drafts whatever was asked for; so does a P-EAGLE head, in one
    pass.
    """
    draft: Literal["depth", "k_max"] = "k_max" if speculation.method in ("ngram_gpu", "p_eagle") else "depth"
    if tier.gpu is None or _says_sizes(arguments):
        return EngineFacts(draft=draft)
    return EngineFacts(graph="per_k" if runner == "v2" else "k_max", graph_tokens=MOST_TOKENS, draft=draft)


def _speculative_config(speculation: Speculation, runner: Runner, model_path: Callable[[str], Path]) -> dict[str, Any]:
    config: dict[str, Any] = {"method": speculation.method, "num_speculative_tokens": speculation.k_max}
    if speculation.method == "p_eagle":  # to vLLM an EAGLE-3 head that is run in another way
        config |= {"method": "eagle3", "parallel_drafting": True}
    if speculation.draft is not None:
        config["model"] = str(model_path(speculation.draft))
    if speculation.method in ("ngram", "ngram_gpu"):
        config |= _NGRAM
    if runner == "v2":  # on V1 a schedule only turns whole-step graphs off (config/vllm.py:1039-1056)
        config["num_speculative_tokens_per_batch_size"] = depth_schedule(speculation.k_max)
    return config
