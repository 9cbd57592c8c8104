"""How fast an engine is expected to be: committed estimates, else bytes over bandwidth. Without speculation."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

import yaml
from pydantic import Field

from cluster.catalogue.types import Gpu, Model, catalogue
from router.registry import Frozen

PROMPT_TOKENS: Final = 512
_BANDWIDTH_SHARE: Final = 0.74
"""Share of the bandwidth that weights are read at: 8B bf16 on an H100, 155 tokens/s, measured (bench/results)."""
_COMPUTE_SHARE: Final = 0.5
"""Share of the peak compute that a prefill reaches (~)."""
_OVERHEAD_MS: Final = 30.0
"""Time of a first token besides its prefill, ms (~)."""


class Estimate(Frozen):
    """Estimated speed of a model on some cards."""

    basis: str = Field(description="What it is estimated from.")
    ttft_ms: float = Field(description="Prefill of 512 tokens, ms.")
    step_ms: dict[int, float] = Field(description="Time of a decode step by batch size, ms.")


class Expected(Frozen):
    """What a warm and idle engine is expected to do, for `expected_*` of a tier."""

    ttft_ms: float = Field(description="Time to first token of a prompt of 512 tokens, ms.")
    tokens_per_s: float = Field(description="Output speed of one stream, tokens/s.")
    basis: str = Field(description="What it is estimated from.")


@cache
def estimates() -> dict[str, dict[str, dict[int, Estimate]]]:
    """Return the committed estimates by model, GPU and tensor parallel size (`python -m bench.estimate`)."""
    raw = yaml.safe_load((Path(__file__).parent / "estimates.yaml").read_text(encoding="utf-8"))
    return {
        model: {
            gpu: {size: Estimate.model_validate(each) for size, each in sizes.items()} for gpu, sizes in gpus.items()
        }
        for model, gpus in raw.items()
    }


def expected(model_name: str, gpu_name: str, parallel: int) -> Expected:
    """Return the expected speed of the model alone on whole cards: neighbours on a shared card are not counted."""
    model, gpu = catalogue().models[model_name], catalogue().gpus[gpu_name]
    found = estimates().get(model_name, {}).get(gpu_name, {}).get(parallel)
    if found is None:
        step, prefill = decode_ms(model, gpu, parallel, 1), prefill_ms(model, gpu, parallel, PROMPT_TOKENS)
        basis = "bandwidth"
    else:
        step, prefill, basis = found.step_ms[1], found.ttft_ms, found.basis
    return Expected(ttft_ms=round(prefill + _OVERHEAD_MS), tokens_per_s=round(1000 / step), basis=basis)


def decode_ms(model: Model, gpu: Gpu, parallel: int, batch: int) -> float:
    """Return the time of a decode step, ms: the larger of reading the weights and multiplying with them.

    read_ms    = bytes / (0.74 x bandwidth x cards); an MoE step reads at most `batch` times its experts per token
    compute_ms = 2 x weights x batch / (0.5 x compute x cards)
    """
    experts = min(model.experts, model.experts_per_token * batch)
    once = model.bytes_read_per_token
    share = model.layer_weights(experts) / model.layer_weights(model.experts_per_token)
    read = once * share / (_BANDWIDTH_SHARE * gpu.bandwidth_gb_s * 1e6 * parallel)
    return max(read, _compute_ms(model, gpu, parallel, batch))


def prefill_ms(model: Model, gpu: Gpu, parallel: int, tokens: int) -> float:
    """Return the time of a prefill, ms: the larger of its compute and of reading the weights once."""
    return max(_compute_ms(model, gpu, parallel, tokens), decode_ms(model, gpu, parallel, 1))


def _compute_ms(model: Model, gpu: Gpu, parallel: int, tokens: int) -> float:
    return 2 * model.active_weights * tokens / (_COMPUTE_SHARE * gpu.bf16_tflops * 1e9 * parallel)
