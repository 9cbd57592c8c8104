"""Resolve vLLM's config of GPU entries on pretended cards; one JSON line an entry and compute capability on stdout.

    python -m tests.integration.gpu_config.resolve FOLDER

A fork for each compute capability, after the imports, which take most of the time. FOLDER takes the models' configs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from bench.kit.model_configs import write_eagle3, write_model
from cluster.catalogue.types import catalogue
from router.registry import ChainEntry, Tier
from serve_app.engine.interface import EngineStartError
from serve_app.engine.vllm.decode_graphs import MOST_TOKENS
from serve_app.speculation.settings import SpeculationSettings
from tests.integration.gpu_config.profiles import CAPABILITIES, ODD_ON, OTHER_SETTINGS, Key, entries, odd_entries
from tests.support.fake_cuda import pretend

MEMORY_GIB = 80.0
CARDS = 8


def main(models_dir: Path) -> None:
    """Print what becomes of each entry on each card."""
    # Before any of vLLM is imported.
    card = pretend(MEMORY_GIB, CARDS)
    _import()
    _one_process()
    for capability in CAPABILITIES:
        sys.stdout.flush()
        if child := os.fork():
            if os.waitpid(child, 0)[1]:
                raise SystemExit(f"compute capability {capability} failed")
            continue
        major, minor = capability.split(".")
        card.capability = int(major), int(minor)
        on_card(capability, models_dir)
        return


def _import() -> None:
    """Import what asks nothing of the card."""
    import serve_app.engine.vllm.arguments
    import serve_app.engine.vllm.compat  # noqa: F401


def on_card(capability: str, models_dir: Path) -> None:
    """Print what becomes of each entry on the card of this process."""
    tried = entries(capability) | (odd_entries() if capability == ODD_ON else {})
    known: dict[str, dict[str, Any]] = {}
    for key, (tier, entry) in tried.items():
        _write_models(models_dir, entry)
        same = entry.model_dump_json(exclude={"name"}) + repr((tier.tensor_parallel, tier.max_ongoing_requests))
        if same not in known:
            try:
                known[same] = resolve(tier, entry, models_dir, SpeculationSettings())
            except (EngineStartError, ValueError) as error:
                known[same] = {"error": str(error)}
        _say(capability, key, known[same])
    tier, entry = next((tier, entry) for tier, entry in tried.values() if entry.speculation is not None)
    assert entry.speculation is not None
    speculation = entry.speculation.model_copy(update={"tau": 0.123, "k": 1})
    other = entry.model_copy(update={"speculation": speculation})
    found = resolve(tier, other, models_dir, SpeculationSettings(exploration_share=0.123))
    _say(capability, (OTHER_SETTINGS, "", entry.name), {"hash": found["hash"]})


def _say(capability: str, key: Key, found: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"capability": capability, "key": key, **found}) + "\n")


def resolve(tier: Tier, entry: ChainEntry, models_dir: Path, settings: SpeculationSettings) -> dict[str, Any]:
    """Return what vLLM's config says of the entry."""
    from serve_app.engine.vllm.arguments import engine_args
    from serve_app.engine.vllm.compat import check_interface
    from serve_app.engine.vllm.runner import runner_environment, runner_for

    runner = runner_for(entry, on_gpu=True)
    os.environ.update(runner_environment(runner))
    args = engine_args("tier", tier, entry, settings, lambda model: models_dir / model)
    config = args.create_engine_config()
    check_interface(config, entry, runner, on_gpu=True)
    return {
        "runner": "v2" if config.use_v2_model_runner else "v1",
        "async": config.scheduler_config.async_scheduling,
        "scheduler": config.scheduler_config.scheduler_cls,
        "executor": config.parallel_config.distributed_executor_backend,
        "tensor_parallel": config.parallel_config.tensor_parallel_size,
        "worker": config.parallel_config.worker_cls,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "parallel_drafting": bool(config.speculative_config and config.speculative_config.parallel_drafting),
        "graph_mode": config.compilation_config.cudagraph_mode.name,
        "quantization": config.model_config.quantization,
        "attention": attention_backend(config),
        "linear": linear_kernel(config),
        "hash": config.compute_hash(),
        "graphs": graphs(config, entry) if runner == "v2" and entry.speculation else None,
    }


def _one_process() -> None:
    """Set the groups of processes that layers and graph managers ask for their rank."""
    from vllm.distributed import parallel_state

    parallel_state._TP = SimpleNamespace(world_size=1, rank_in_group=0)
    parallel_state._PP = SimpleNamespace(is_first_rank=True, is_last_rank=True)


def _write_models(models_dir: Path, entry: ChainEntry) -> None:
    known = catalogue()
    target, draft = entry.target, entry.speculation.draft if entry.speculation is not None else None
    for name in filter(None, (target, draft)):
        if (models_dir / name).exists():
            continue
        if name in known.models:
            write_model(models_dir / name, known.models[name])
        else:
            write_eagle3(models_dir / name, known.eagle3_heads[name], known.models[target])


def attention_backend(config: Any) -> list[Any]:
    """Return the name of the attention backend, FlashAttention's version, and the query lengths that graphs may mix."""
    from vllm.config import set_current_vllm_config
    from vllm.v1.attention.backends.fa_utils import get_flash_attn_version
    from vllm.v1.attention.selector import get_attn_backend

    model = config.model_config
    with set_current_vllm_config(config):
        backend = get_attn_backend(model.get_head_size(), model.dtype, "auto")
        version = get_flash_attn_version()
        support = backend.get_builder_cls().get_cudagraph_support(config, None)
    return [backend.get_name(), version, support.name]


def linear_kernel(config: Any) -> str | None:
    """Return the class of the kernel for a linear layer's quantized weights; None: not quantized."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.linear import ColumnParallelLinear
    from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

    quantization: QuantizationConfig | None = config.quant_config
    if quantization is None:
        return None
    size = config.model_config.get_hidden_size()
    with set_current_vllm_config(config), torch.device("meta"):
        layer = ColumnParallelLinear(
            size, size, bias=False, params_dtype=torch.bfloat16, quant_config=quantization, disable_tp=True
        )
    return next(iter(_kernels(layer)), type(layer.quant_method).__name__)


def _kernels(layer: Any) -> Iterator[str]:
    for owner in (layer, layer.quant_method, getattr(layer, "scheme", None)):
        for value in vars(owner).values() if owner is not None else ():
            if type(value).__name__.endswith("Kernel"):
                yield type(value).__name__


def graphs(config: Any, entry: ChainEntry) -> dict[str, Any]:
    """Return the CUDA graphs of our managers and of vLLM's own.

    How many whole-step graphs, the batches of one depth that have none, and the sizes of graphs piece by piece.
    """
    from vllm.config.compilation import CUDAGraphMode
    from vllm.v1.worker.gpu.cudagraph_utils import ModelCudaGraphManager

    from serve_app.engine.vllm.graph_managers import DepthDraftGraphs, DepthModelGraphs

    assert entry.speculation is not None
    k_max, most = entry.speculation.k_max, config.scheduler_config.max_num_seqs
    found: dict[str, Any] = {}
    managers = {"target": DepthModelGraphs, "draft": DepthDraftGraphs, "vllms": ModelCudaGraphManager}
    for name, manager_type in managers.items():
        manager = manager_type(config, torch.device("cpu"), config.compilation_config.cudagraph_mode, k_max + 1)
        manager._graphs_captured = True
        whole = [desc for desc in manager._capture_descs.values() for desc in desc if desc.cg_mode.name == "FULL"]
        without = [
            (k, batch)
            for k in range(k_max + 1)
            for batch in range(1, min(most, MOST_TOKENS // (k + 1)) + 1)
            if not _fits(manager.dispatch(batch, batch * (k + 1), k + 1, 0), batch, k + 1)
        ]
        sizes = sorted(desc.num_tokens for desc in manager._capture_descs.get(CUDAGraphMode.PIECEWISE, ()))
        for tokens in range(2, sizes[-1] + 1) if sizes else ():
            piecewise = manager.dispatch(2, tokens, None, 0)  # a step of mixed depths
            assert piecewise.num_tokens == next(size for size in sizes if size >= tokens)
        found[name] = {"whole": len(whole), "without": without, "pieces": sizes}
    return found


def _fits(desc: Any, batch: int, tokens: int) -> bool:
    whole: bool = desc.cg_mode.name == "FULL" and desc.uniform_token_count == tokens
    return whole and desc.num_reqs >= batch and desc.num_tokens == desc.num_reqs * tokens


if __name__ == "__main__":
    main(Path(sys.argv[1]))
