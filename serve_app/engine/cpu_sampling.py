"""Mends vLLM 0.32's CPU build, which does not sample losslessly when it speculates at a temperature above 0.

`vllm/utils/cpu_triton_utils.py: _expand_kernel_impl` writes each draft token's temperature, top_p and top_k into a
temporary copy that is never copied back, so they are uninitialised memory (vLLM issue 55005). This puts a correct
implementation in its place. To be called in the process of the worker, after the worker has started; can go with the
first vLLM that has the fix.
"""

from __future__ import annotations

import torch
from vllm.triton_utils.dispatcher import KernelOverride
from vllm.v1.sample import rejection_sampler


def repair_draft_sampling() -> None:
    """Replace the implementation. Changes nothing for greedy requests, which do not use it.

    Raises:
        RuntimeError: this vLLM runs the kernel in another way, so its sampling must be looked at again.
    """
    kernel = rejection_sampler.expand_kernel
    if not isinstance(kernel, KernelOverride):
        raise RuntimeError(f"vLLM's expand_kernel on CPU is a {type(kernel).__name__}, expected a KernelOverride")
    # Not by `register_kernels`, which looks through every loaded module and fails at some of Ray's and torch's.
    kernel._impl = kernel.func = _expand
    kernel._forward_by_name = False


def _expand(
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
