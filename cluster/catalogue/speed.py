"""How fast an engine is expected to be without speculation: one formula for every model and card, so tiers compare.

Its coefficients are fitted for each card to kernel times that were measured on it (`python -m bench.estimate`).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

import yaml
from pydantic import Field

from cluster.catalogue.memory import MEAN_REQUEST_TOKENS
from cluster.catalogue.types import Gpu, Model, catalogue
from router.registry import Frozen

PROMPT_TOKENS: Final = 512
_HOST_MS: Final = 2.1
_HOST_MS_PER_REQUEST: Final = 0.044
"""Least time of a step: scheduling, sampling and detokenising beside the GPU's work. SmolLM2-135M on an H100, measured:
482 tokens/s with 1 stream, 8402 with 32, 16582 with 128 (docs/gpus.md)."""
_HOPPER: Final = 9.0
_FIRST_TOKEN_MS: Final = 30.0
"""Time of a first token besides its prefill, ms (~)."""


class Coefficients(Frozen):
    """What a card makes of a model's bytes and operations."""

    bandwidth_share: float = Field(gt=0, le=1, description="Share of the bandwidth that weights and KV are read at.")
    compute_share: float = Field(gt=0, le=1, description="Share of the dense compute that a prefill reaches.")
    layer_ms: float = Field(ge=0, description="Time of a layer besides its reads, ms.")
    split_ms: float = Field(ge=0, description="Further time of a layer that is split over cards, ms.")
    split_ms_per_mb: float = Field(ge=0, description="Further time for each MB that the split sends, ms (10^6 bytes).")
    fitted_to: str = Field(description="The cards whose measured kernel times it is fitted to.")


class Expected(Frozen):
    """What a warm and idle engine is expected to do, for `expected_*` of a tier."""

    ttft_ms: float = Field(description="Time to first token of a prompt of 512 tokens, ms.")
    tokens_per_s: float = Field(description="Output speed of one stream, tokens/s.")


@cache
def coefficients() -> dict[str, Coefficients]:
    """Return the committed coefficients by GPU."""
    raw = yaml.safe_load((Path(__file__).parent / "speed.yaml").read_text(encoding="utf-8"))
    return {gpu: Coefficients.model_validate(each) for gpu, each in raw.items()}


def expected(model_name: str, gpu_name: str, parallel: int) -> Expected:
    """Return the expected speed of the model alone on whole cards: neighbours on a shared card are not counted."""
    gpu, card = catalogue().gpus[gpu_name], coefficients()[gpu_name]
    prefill = prefill_ms(catalogue().models[model_name], gpu, card, parallel, PROMPT_TOKENS)
    return Expected(
        ttft_ms=round(prefill + _FIRST_TOKEN_MS), tokens_per_s=round(1000 / step_ms(model_name, gpu_name, parallel, 1))
    )


def usd_per_million(price_usd_per_hour: float, step: float, batch: int) -> float:
    """Return the price of 10^6 tokens: USD/h / 3600 s/h x ms / 1000 ms/s / tokens of a step x 10^6."""
    return price_usd_per_hour / 3600 * step / 1000 / batch * 1e6


@cache
def step_ms(model_name: str, gpu_name: str, parallel: int, batch: int) -> float:
    """Return the time of a decode step of a model of the catalogue, ms."""
    gpu, card = catalogue().gpus[gpu_name], coefficients()[gpu_name]
    return decode_ms(catalogue().models[model_name], gpu, card, parallel, batch)


def decode_ms(model: Model, gpu: Gpu, card: Coefficients, parallel: int, batch: int) -> float:
    """Return the time of a decode step of mean requests, ms: the host's work, or the GPU's if that takes longer.

    gpu = max(weights / (share x bandwidth), 2 x weights x batch / (share x compute)) + KV / (share x bandwidth)
          + layers x layer_ms + what the split costs; weights and KV are those of one of the cards
    """
    kv = kv_ms(model, gpu, card, parallel, batch * MEAN_REQUEST_TOKENS)
    return max(host_ms(batch), prefill_ms(model, gpu, card, parallel, batch) + kv)


def host_ms(batch: int) -> float:
    """Return the host's work for a step, ms: it runs beside the GPU's."""
    return _HOST_MS + _HOST_MS_PER_REQUEST * batch


def kv_ms(model: Model, gpu: Gpu, card: Coefficients, parallel: int, tokens: float) -> float:
    """Return the time in which keys and values of so many tokens are read, ms."""
    read = tokens * model.kv_bytes_per_token(model.layers, parallel)
    return read / (card.bandwidth_share * gpu.bandwidth_gb_s * 1e6)


def prefill_ms(model: Model, gpu: Gpu, card: Coefficients, parallel: int, tokens: int) -> float:
    """Return the time of a pass of `tokens` without what it reads of the KV cache, ms: the sum above."""
    read = model.bytes_read(tokens) / parallel / (card.bandwidth_share * gpu.bandwidth_gb_s * 1e6)
    # FP8 in blocks is computed in 16 bits by Marlin kernels before Hopper (docs/gpus.md).
    eight_bits = model.weights == "fp8" or (model.weights == "fp8-block" and gpu.capability >= _HOPPER)
    tflops = (gpu.fp8_tflops if eight_bits else None) or gpu.bf16_tflops
    compute = 2 * model.active_weights * tokens / (card.compute_share * tflops * 1e9 * parallel)
    each = card.layer_ms + (card.split_ms if parallel > 1 else 0)
    return max(read, compute) + model.layers * each + split_mb(model, parallel, tokens) * card.split_ms_per_mb


def split_mb(model: Model, parallel: int, tokens: int) -> float:
    """Return what a card sends for `tokens`, 10^6 bytes: 2 all-reduces a layer, 2 bytes an element, there and back."""
    return model.layers * tokens * model.hidden * 2 * 2 * 2 * (parallel - 1) / parallel / 1e6
