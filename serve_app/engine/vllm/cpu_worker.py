"""vLLM 0.32's CPU worker with three faults patched (`worker_cls`). Only for the CPU build.

1. With drafts at a temperature above 0 it does not sample the model's distribution: `expand_kernel` writes each draft
   token's temperature, top_p and top_k into a temporary copy that is never copied back, so they are uninitialised
   memory (vLLM issue 55005).
2. A seeded request whose prefill is cut into pieces ends the engine for everybody: the token sampled after a piece is
   thrown away, and the generator is reset for that, which generators on CPU cannot do ("CPU Generator does not use
   offset").
3. A sampled request with a top_k ends the engine in any step in which nothing is drafted: vLLM takes the largest of no
   top_k.

Remove each with the first vLLM that has fixed it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.triton_utils.dispatcher import KernelOverride
from vllm.v1.sample import rejection_sampler
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker

from serve_app.engine.vllm.composite_drafts import compose_drafts


class PatchedCpuWorker(CPUWorker):
    """See the module."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """See vLLM."""
        super().load_model(*args, **kwargs)
        patch_draft_sampling()
        patch_steps_without_drafts()
        patch_generators(self.model_runner)


class CompositeCpuWorker(PatchedCpuWorker):
    """The patched worker with n-gram drafts beside the entry's own."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """See vLLM."""
        super().load_model(*args, **kwargs)
        compose_drafts(self.model_runner)


def patch_draft_sampling() -> None:
    """Give `expand_kernel` an implementation that writes what it computes. Greedy requests do not use it.

    Raises:
        RuntimeError: this vLLM runs the kernel in another way, so its sampling must be checked again.
    """
    kernel = rejection_sampler.expand_kernel
    if not isinstance(kernel, KernelOverride):
        raise RuntimeError(f"vLLM's expand_kernel on CPU is a {type(kernel).__name__}, expected a KernelOverride")
    # `register_kernels` would look through every loaded module, and fails at some of Ray's and torch's.
    kernel._impl = kernel.func = expand
    kernel._forward_by_name = False


def patch_steps_without_drafts() -> None:
    """Skip the sampling constraints of draft tokens when there are none."""
    constrain = rejection_sampler.apply_sampling_constraints

    def constrain_some(logits: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        constrained: torch.Tensor = constrain(logits, *args, **kwargs) if len(logits) else logits
        return constrained

    rejection_sampler.apply_sampling_constraints = constrain_some


def expand(
    output: torch.Tensor,
    values: torch.Tensor,
    cu_num_tokens: torch.Tensor,
    replace_from: float,
    replace_to: float,
    MAX_NUM_TOKENS: int | None = None,
) -> None:
    """Repeat each request's value over its draft tokens.

    Args:
        output: written, shape (all draft tokens,).
        values: shape (requests,).
        cu_num_tokens: cumulated number of draft tokens, shape (requests,).
        replace_from: a value to replace (temperature 0 of greedy requests would divide by zero).
        replace_to: with this one.
        MAX_NUM_TOKENS: of the GPU kernel.
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1)).long()
    replaced = torch.where(values == replace_from, torch.full_like(values, replace_to), values)
    output.copy_(torch.repeat_interleave(replaced, counts))


def patch_generators(runner: CPUModelRunner) -> None:
    """Sample tokens that will be thrown away without the request's generator, so that it need not be reset."""
    sample, bookkeeping = runner._sample, runner._bookkeeping_sync
    aside: dict[int, torch.Generator] = {}

    def sample_without_discarded(*args: Any, **kwargs: Any) -> Any:
        # The sampling metadata hold this same dictionary.
        generators = runner.input_batch.generators
        for row in np.nonzero(runner.discard_request_mask.np[: runner.input_batch.num_reqs])[0].tolist():
            if row in generators:
                aside[row] = generators.pop(row)
        return sample(*args, **kwargs)

    def bookkeeping_and_restore(*args: Any, **kwargs: Any) -> Any:
        try:
            return bookkeeping(*args, **kwargs)
        finally:
            runner.input_batch.generators.update(aside)
            aside.clear()

    runner._sample = sample_without_discarded
    runner._bookkeeping_sync = bookkeeping_and_restore
