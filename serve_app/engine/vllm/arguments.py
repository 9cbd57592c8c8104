"""The arguments of vLLM's engine and of its OpenAI server, for one chain entry of a tier."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import FrontendArgs

from router.registry import ChainEntry, Speculation, Tier
from serve_app.engine.interface import EngineStartError
from serve_app.engine.vllm import ngram_lookup
from serve_app.engine.vllm.scheduler import CONFIG_KEY
from serve_app.speculation.settings import SpeculationSettings

_NGRAM: Final = {"prompt_lookup_min": ngram_lookup.SHORTEST, "prompt_lookup_max": ngram_lookup.LONGEST}

_CPU_WORKERS: Final = {
    False: "serve_app.engine.vllm.cpu_worker.PatchedCpuWorker",
    True: "serve_app.engine.vllm.cpu_worker.CompositeCpuWorker",
}
"""By whether the entry can switch to n-gram drafting."""
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
    arguments: dict[str, Any] = {
        "model": str(model_path(entry.target)),
        "served_model_name": [name, entry.target],
        "max_model_len": entry.max_model_len,
        "quantization": entry.quantization,
        "tensor_parallel_size": tier.tensor_parallel,
        "speculative_config": _speculative_config(speculation, model_path) if speculation else None,
        "max_num_queued_reqs": _SEQUENCES_A_REQUEST * tier.max_ongoing_requests,
        **{key: value for key, value in entry.engine_args.items() if key not in server_args(entry)},
    }
    composite = speculation is not None and speculation.drafts_both_ways
    if tier.gpu is None:
        arguments.setdefault("worker_cls", _CPU_WORKERS[composite])
    elif composite:
        arguments.setdefault("worker_cls", "serve_app.engine.vllm.composite_drafts.CompositeGpuWorker")
    if speculation:
        controller = {"settings": settings.model_dump(mode="json"), "speculation": speculation.model_dump(mode="json")}
        arguments["scheduler_cls"] = "serve_app.engine.vllm.scheduler.DepthScheduler"
        arguments["additional_config"] = {**arguments.get("additional_config", {}), CONFIG_KEY: controller}
        arguments.setdefault("per_request_spec_decode_metrics", "detailed")
    try:
        return AsyncEngineArgs(**arguments)
    except TypeError as error:
        raise EngineStartError(f"engine_args: {error}") from error


def server_namespace(args: AsyncEngineArgs, entry: ChainEntry) -> argparse.Namespace:
    """Return the parsed command line of `vllm serve` with these arguments."""
    return argparse.Namespace(**(vars(FrontendArgs()) | vars(args) | server_args(entry)))


def _speculative_config(speculation: Speculation, model_path: Callable[[str], Path]) -> dict[str, Any]:
    config: dict[str, Any] = {"method": speculation.method, "num_speculative_tokens": speculation.k_max}
    if speculation.draft is not None:
        config["model"] = str(model_path(speculation.draft))
    if speculation.method in ("ngram", "ngram_gpu"):
        config |= _NGRAM
    return config
