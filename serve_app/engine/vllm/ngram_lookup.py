"""n-gram drafts on the device: what followed the last tokens when they stood in the text before.

The lookup never waits for the device.
"""

from __future__ import annotations

import torch
from torch.nn.functional import one_hot, pad

SHORTEST = 2
LONGEST = 4
"""Tokens that must match. One token repeats by chance in prose; four are enough to follow copied text."""


def ngram_drafts(history: torch.Tensor, lengths: torch.Tensor, k: int) -> torch.Tensor:
    """Return draft tokens for each request: those after the earliest earlier occurrence of its longest suffix.

    If there is none, or its text ends, the request's last token is repeated: a draft must be a token, and a wrong one
    is only rejected.

    Args:
        history: token ids, shape (requests, tokens); values beyond a request's length are ignored.
        lengths: tokens of each request, at least 1, shape (requests,).
        k: drafts for each request.

    Returns:
        Token ids, shape (requests, k), of `history`'s type.
    """
    rows, width = history.shape
    lengths = lengths.long().unsqueeze(1)
    last = history.gather(1, lengths - 1)
    follows = torch.full((rows, 1), -1, device=history.device)
    for n in range(SHORTEST, min(LONGEST, width) + 1):
        suffix_at = (lengths - n + torch.arange(n, device=history.device)).clamp(min=0)
        windows = history.unfold(1, n, 1)
        places = torch.arange(windows.shape[1], device=history.device)
        # The suffix itself is no earlier place, and a suffix longer than the text is none.
        found = (windows == history.gather(1, suffix_at).unsqueeze(1)).all(-1) & (places < lengths - n)
        first = found.int().argmax(1, keepdim=True)
        follows = torch.where(found.gather(1, first), first + n, follows)
    at = follows + torch.arange(k, device=history.device)
    known = (follows >= 0) & (at < lengths)
    return torch.where(known, history.gather(1, at.clamp(0, width - 1)), last)


def mixed_drafts(own: torch.Tensor, looked_up: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return the drafts of a batch in which some requests' drafts are looked up, and the others' are an own draft's.

    Args:
        own: shape (requests, own depth).
        looked_up: shape (requests, k), k at least the own depth.
        rows: whose drafts are looked up, shape (requests,).

    Returns:
        Shape (requests, k). Beyond the own depth the others' drafts mean nothing; the scheduler verifies none of these.
    """
    return torch.where(rows.unsqueeze(1), looked_up, pad(own, (0, looked_up.shape[1] - own.shape[1])))


def mixed_probabilities(own: torch.Tensor, looked_up: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return the draft probabilities of such a batch: a looked-up token is certain.

    Args:
        own: of each token of the vocabulary, shape (requests, own depth, vocabulary).
        looked_up: see `mixed_drafts`.
        rows: see `mixed_drafts`.

    Returns:
        Shape (requests, k, vocabulary).
    """
    depth, size = own.shape[1:]
    certain = one_hot(looked_up.long(), size).to(own.dtype)
    return torch.where(rows.view(-1, 1, 1), certain, pad(own, (0, 0, 0, looked_up.shape[1] - depth)))


class TokenHistory:
    """Token ids by KV-cache slot, so that a request's text is found through its block table.

    Like the KV cache itself it survives reordered batches, preemption and prefix caching.

    Args:
        blocks: of the KV cache.
        block_size: tokens in a block.
        device: where the tensors are.
    """

    def __init__(self, blocks: int, block_size: int, device: torch.device) -> None:
        self._block_size = block_size
        # Padding is mapped to slot -1, the last one, which no request has.
        self._tokens = torch.zeros(blocks * block_size + 1, dtype=torch.int32, device=device)

    def write(self, slots: torch.Tensor, tokens: torch.Tensor) -> None:
        """Write tokens to their slots, both of shape (tokens,)."""
        self._tokens[slots.long()] = tokens.to(self._tokens.dtype)

    def read(self, block_table: torch.Tensor, length: int) -> torch.Tensor:
        """Return the first tokens of each request.

        Args:
            block_table: shape (requests, blocks of the longest possible text).
            length: how many tokens, at most as many as those blocks hold.

        Returns:
            Shape (requests, length); arbitrary values beyond a request's own length.
        """
        blocks = block_table[:, : -(-length // self._block_size)].long()
        slots = blocks.unsqueeze(2) * self._block_size + torch.arange(self._block_size, device=blocks.device)
        return self._tokens[slots.flatten(1)[:, :length]]
