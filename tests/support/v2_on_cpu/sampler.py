"""V2's rejection sampler by itself, on made-up logits and drafts. Import it after the shim."""

from __future__ import annotations

import torch
from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample


def sample_with_drafts(
    logits: list[list[float]], drafts: list[int], requests: int, temperature: float
) -> list[list[int]]:
    """Return what many alike requests get in one step.

    Args:
        logits: of the target, shape (drafts + 1, vocabulary): after the text, and after each draft.
        drafts: token ids that a greedy draft proposed.
        requests: how many, each with another seed.
        temperature: of all.

    Returns:
        The tokens of each request: 1 to drafts + 1 of them.
    """
    rows = len(drafts) + 1
    index = torch.arange(requests)
    each = torch.repeat_interleave(index, rows)
    sampled, counts = rejection_sample(
        (torch.tensor(logits, dtype=torch.float32) / temperature).repeat(requests, 1),
        None,
        # The first row's token is the last one of the text.
        torch.tensor([0, *drafts], dtype=torch.int32).repeat(requests),
        torch.arange(requests + 1, dtype=torch.int32) * rows,
        torch.arange(10, 10 + rows).repeat(requests),
        index,
        each,
        torch.arange(rows, dtype=torch.int32).repeat(requests),
        torch.full((requests,), temperature, dtype=torch.float32),
        torch.arange(1, requests + 1) * 7919,
        len(drafts),
    )
    return [tokens[:count] for tokens, count in zip(sampled.tolist(), counts.tolist(), strict=True)]
