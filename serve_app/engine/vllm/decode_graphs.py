"""Which decode steps have a CUDA graph of their own, on vLLM's V2 runner. Pure.

By itself V2 captures a whole decode step only for k_max drafts of every request: with fewer, or none, it runs piece by
piece, which costs more than an engine without speculation. vLLM's schedule of depths by batch size makes it capture
every depth in the schedule; nothing else of the schedule is used, as our scheduler decides depths itself.
"""

from __future__ import annotations

from typing import Final

MOST_TOKENS: Final = 512
"""Tokens of the largest step with a graph, as vLLM's own default for all cards but Blackwell (config/vllm.py:2350)."""
_SMALL: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_EVERY: Final = 64
"""Beyond the small ones, batch sizes with a graph are this far apart."""


def depth_schedule(k_max: int) -> list[list[int]]:
    """Return vLLM's `num_speculative_tokens_per_batch_size` with every depth from k_max to 0 in it.

    Each range is [first batch size, last, depth]; the last depth, 0, holds for all larger batches.
    """
    return [[size, size, k_max + 1 - size] for size in range(1, k_max + 2)]


def batch_sizes(most: int) -> list[int]:
    """Return the batch sizes with a graph; a batch between two is padded to the larger.

    Args:
        most: requests of the largest batch.
    """
    sizes = [*_SMALL, *range(_SMALL[-1] + _EVERY, most, _EVERY)]
    return [size for size in sizes if size < most] + [most]


def decode_graphs(k_max: int, most: int) -> dict[int, list[int]]:
    """Return the batch sizes with a graph by tokens per request, 1 (no drafts) to k_max + 1.

    Args:
        k_max: most draft tokens of a request.
        most: requests of the largest batch.
    """
    return {tokens: batch_sizes(min(most, MOST_TOKENS // tokens)) for tokens in range(1, k_max + 2)}


def piecewise_sizes(k_max: int, most: int) -> list[int]:
    """Return the tokens of steps with graphs piece by piece, for any mix of depths: vLLM's own default sizes.

    They reach twice the tokens of the largest decode step (config/vllm.py:2292).
    """
    sizes = (1, 2, 4, *range(8, 256, 8), *range(256, MOST_TOKENS + 1, 16))
    return [size for size in sizes if size <= 2 * most * (k_max + 1)]


def capture_sizes(k_max: int, most: int) -> list[int]:
    """Return vLLM's `cudagraph_capture_sizes`, tokens of a step: those of `piecewise_sizes` and of `decode_graphs`."""
    graphs = decode_graphs(k_max, most)
    whole = {tokens * size for tokens, sizes in graphs.items() for size in sizes}
    return sorted(whole.union(piecewise_sizes(k_max, most)))
