"""The speed of a tier's replica: what a prompt, and a step of the whole batch, take.

The times are those of `cluster/catalogue/speed.py`: estimated from measured kernels for the tier's model and GPU. A
prompt's attention to itself is added, because the prompts here are longer than those that the estimates are for.
Speculation is not simulated, and the KV cache has room for all slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cluster.catalogue.speed import Coefficients, coefficients, host_ms, kv_ms, prefill_ms
from cluster.catalogue.types import Gpu, Model, catalogue
from cluster.profiles.reading import load_profile
from router.registry import TierName

Floats = NDArray[np.float64]

PROFILE: Final = "gpu"
_LARGE_GIB: Final = 70.0
"""From this memory on vLLM's default `max_num_batched_tokens` is 8192, else 2048."""
_PROMPTS: Final = tuple(2**power for power in range(4, 18))
"""Prompt lengths between whose times others are interpolated, tokens."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """One replica. Times in seconds."""

    slots: int
    """Requests that it takes at once."""
    cold_start_s: float
    gpus: float
    """Cards of a replica."""
    prompts_s: Sequence[tuple[float, float]]
    """Prompt length in tokens and time of its prefill, rising."""
    batched_tokens: int
    """Prompt tokens in one step at most (chunked prefill)."""
    host_s: Sequence[float]
    pass_s: Sequence[float]
    """By the size of the batch, from 0 on: the host's work for a step, and the GPU's besides the KV cache."""
    kv_s: float = 0.0
    """Time in which the keys and values of one token are read."""

    def prompt_s(self, tokens: float) -> float:
        """Return the time of the prefill of one prompt alone."""
        return float(self.prefill_s(np.array([tokens]))[0])

    def prefill_s(self, prompt_tokens: Floats) -> Floats:
        """Return the time of the prefill of each prompt alone."""
        lengths, times_s = zip(*self.prompts_s, strict=True)
        return np.asarray(np.interp(prompt_tokens, lengths, times_s))

    def step_s(self, batch: int, kv_tokens: float) -> float:
        """Return the time of a decode step of a batch that has so many tokens in the KV cache."""
        return max(self.host_s[batch], self.pass_s[batch] + kv_tokens * self.kv_s)

    def work_s(self, prompt_tokens: Floats, completion_tokens: Floats) -> Floats:
        """Return each request's share of a busy replica's time: its prefill, and its part in steps of a full batch."""
        context = prompt_tokens + completion_tokens / 2
        steps = np.maximum(self.host_s[-1], self.pass_s[-1] + self.slots * context * self.kv_s)
        return np.asarray(self.prefill_s(prompt_tokens) + (completion_tokens - 1) * steps / self.slots)


def scaled_cold_start(hardware: Hardware, share: float) -> Hardware:
    """Return the same hardware with a share of its cold start."""
    return replace(hardware, cold_start_s=share * hardware.cold_start_s)


@cache
def hardware_of(tier_name: TierName) -> Hardware:
    """Return the replica of a tier of the profile `gpu`, with the model that runs when nothing fails."""
    tier = load_profile(PROFILE).tiers[tier_name]
    name, parallel, slots = str(tier.gpu), tier.tensor_parallel, tier.max_ongoing_requests
    model, gpu, card = catalogue().models[tier.chain[0].target], catalogue().gpus[name], coefficients()[name]
    batches = range(slots + 1)
    return Hardware(
        slots=slots,
        cold_start_s=tier.cold_start_s,
        gpus=tier.gpus,
        prompts_s=tuple((tokens, _prompt_ms(model, gpu, card, parallel, tokens) / 1000) for tokens in _PROMPTS),
        batched_tokens=8192 if gpu.memory_gib >= _LARGE_GIB else 2048,
        host_s=tuple(host_ms(batch) / 1000 for batch in batches),
        pass_s=tuple(prefill_ms(model, gpu, card, parallel, max(1, batch)) / 1000 for batch in batches),
        kv_s=kv_ms(model, gpu, card, parallel, 1.0) / 1000,
    )


def _prompt_ms(model: Model, gpu: Gpu, card: Coefficients, parallel: int, tokens: int) -> float:
    """Return the time of a prompt's prefill, with its attention to itself, ms.

    Causal attention is 2 x tokens^2 x heads x head size x layers operations, counted at the card's dense compute. That
    is within 14% of aiconfigurator 0.12.0's measured kernels for prompts of 512 to 8192 tokens: Qwen3-4B (bf16) on an
    L40S +8, +14, +11, -3% at 512, 2048, 4096, 8192; Llama-3.1-8B (FP8) on an H100 -11, -8, -9, -8%.
    """
    attention = 2 * tokens**2 * model.heads * model.head_dim * model.layers / parallel
    return prefill_ms(model, gpu, card, parallel, tokens) + attention / (gpu.bf16_tflops * 1e9)
