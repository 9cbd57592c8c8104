"""vLLM 0.32's CPU worker, three faults mended; in the process of the worker (`worker_cls`). For the CPU build alone.

1. With drafts at a temperature above 0 it does not sample the model's distribution: `expand_kernel` writes each draft
   token's temperature, top_p and top_k into a temporary copy that is never copied back, so they are uninitialised
   memory (vLLM issue 55005).
2. A seeded request whose prefill is cut into pieces ends the engine for everybody: what is sampled after a piece is
   thrown away, and for that the generator is set back, which generators on CPU cannot do ("CPU Generator does not use
   offset").
3. A sampled request with a top_k ends the engine in any step in which nothing is drafted: the largest of no top_k is
   asked for.

Each can go with the first vLLM that has mended it.
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


class MendedCpuWorker(CPUWorker):
    """See the module."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """See vLLM."""
        super().load_model(*args, **kwargs)
        repair_draft_sampling()
        spare_steps_without_drafts()
        spare_generators(self.model_runner)


class CompositeCpuWorker(MendedCpuWorker):
    """With n-gram drafts beside the step's own."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """See vLLM."""
        super().load_model(*args, **kwargs)
        compose_drafts(self.model_runner)


def repair_draft_sampling() -> None:
    """Give `expand_kernel` an implementation that writes what it computes. Greedy requests do not use it.

    Raises:
        RuntimeError: this vLLM runs the kernel in another way, so its sampling must be looked at again.
    """
    kernel = rejection_sampler.expand_kernel
    if not isinstance(kernel, KernelOverride):
        raise RuntimeError(f"vLLM's expand_kernel on CPU is a {type(kernel).__name__}, expected a KernelOverride")
    # Not by `register_kernels`, which looks through every loaded module and fails at some of Ray's and torch's.
    kernel._impl = kernel.func = expand
    kernel._forward_by_name = False


def spare_steps_without_drafts() -> None:
    """Leave the logits of draft tokens as they are where there are none."""
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


def spare_generators(runner: CPUModelRunner) -> None:
    """Sample what will be thrown away without the request's own generator, so that none has to be set back."""
    sample, keep_books = runner._sample, runner._bookkeeping_sync
    aside: dict[int, torch.Generator] = {}

    def sample_sparing(*args: Any, **kwargs: Any) -> Any:
        # The sampling metadata hold this same dictionary.
        generators = runner.input_batch.generators
        for row in np.nonzero(runner.discard_request_mask.np[: runner.input_batch.num_reqs])[0].tolist():
            if row in generators:
                aside[row] = generators.pop(row)
        return sample(*args, **kwargs)

    def keep_books_and_restore(*args: Any, **kwargs: Any) -> Any:
        try:
            return keep_books(*args, **kwargs)
        finally:
            runner.input_batch.generators.update(aside)
            aside.clear()

    runner._sample = sample_sparing
    runner._bookkeeping_sync = keep_books_and_restore
