"""Environment variables of an engine process with vLLM's CUDA build."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

CACHES: Final = "vllm-caches"
"""Folder in the models folder; no model may have this name."""
_CACHE_VARIABLES: Final = ("VLLM_CACHE_ROOT", "TRITON_CACHE_DIR")


def gpu_environment(models_dir: Path) -> dict[str, str]:
    """Return the environment of a GPU engine's processes.

    A slim image has no CUDA toolkit, and nvcc's Python package is no substitute: its version differs from that of the
    CUDA runtime. What would run nvcc when an engine starts is therefore turned off (places in vLLM 0.32):

    - FlashInfer's sampler. vLLM asks the card only (v1/sample/ops/topk_topp_sampler.py:78-138); both runners' samplers
      ask `flashinfer_sampler_supported` there (V1: 222, V2: v1/worker/gpu/sample/sampler.py:89) and sample in their
      warm-up. The alternative is a Triton kernel.
    - FlashInfer's all-reduce between GPUs (distributed/device_communicators/cuda_communicator.py:70, 133). vLLM's own
      is compiled in its wheel.
    - DeepGEMM, for FP8 weights in blocks and MoE on Hopper (utils/deep_gemm.py:116); CUTLASS and Triton remain.

    Its attention is vLLM's first choice on B200, whether there is nvcc or not (platforms/cuda.py:153-166): there
    `serve_app/engine/vllm/arguments.py` names another. The rest of FlashInfer (autotuning, fused all-reduce, FP8) asks
    `has_flashinfer`, which is false without nvcc (utils/flashinfer.py:88-106).

    Worker processes are spawned: the replica has Ray's threads, which a fork would copy in any state. What vLLM
    compiles is kept beside the weights, on the volume that all nodes share, so that only the first start compiles.
    Triton's cache has the V2 runner's and the sampler's kernels; vLLM alone would put them into one model's cache.
    """
    caches = models_dir / CACHES
    return {
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_ALLREDUCE_USE_FLASHINFER": "0",
        "VLLM_USE_DEEP_GEMM": "0",
        "VLLM_MOE_USE_DEEP_GEMM": "0",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_CACHE_ROOT": str(caches),
        "TRITON_CACHE_DIR": str(caches / "triton"),
    }


def drop_unwritable_caches(environ: MutableMapping[str, str]) -> list[str]:
    """Take out the variables of caches that this process cannot write, since vLLM would fail; return their folders.

    vLLM then compiles into its own default folder.
    """
    dropped = []
    for name in _CACHE_VARIABLES:
        folder = environ.get(name)
        if folder is not None and not _writable(Path(folder)):
            dropped.append(environ.pop(name))
    return dropped


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)
