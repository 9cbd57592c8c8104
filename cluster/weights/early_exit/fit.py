"""Fit the projection of an early-exit draft: ridge least squares from an early hidden state to the last one.

`x` is the target's hidden state after the draft's last layer and `y` the one after its own last layer, both through the
target's final norm. The draft's logits are `head @ W @ x`, with the `W` that brings `W @ x` nearest to `y`. The draft
keeps the norm, so its checkpoint holds only the layers and `head @ W`, an ordinary untied output layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

RIDGE = 0.1
"""Strength of the ridge, relative to the mean square of a coordinate of `x` times the number of rows.

SmolLM2-135M at layers 2 to 20, held-out answers: 0.1 is better than 0.01 by 1 to 3 points of agreement for 1,300 to
2,400 rows; for 7,400 rows they are equal.
"""
_ROWS_AT_ONCE = 512
"""Rows of logits at once. They are as wide as the vocabulary: 512 rows of 128k tokens are 0.26 GB."""


def fit_projection(x: Tensor, y: Tensor, ridge: float = RIDGE) -> Tensor:
    """Return the W [hidden, hidden] that minimises |W x - y|^2 + s |W - I|^2 over the rows of x and y [rows, hidden].

    The ridge pulls to the identity, not to zero, so directions without data keep the early state. The solution is
    direct and in double precision: there is nothing to tune, and the same rows give the same W.
    """
    import torch

    x64, y64 = x.double(), y.double()
    identity = torch.eye(x.shape[1], dtype=torch.float64)
    gram = x64.T @ x64
    strength = ridge * gram.diagonal().mean()
    # Both sides are for W's transpose, and for its difference from the identity.
    away = torch.linalg.solve(gram + strength * identity, x64.T @ (y64 - x64))
    return (identity + away).T.to(x.dtype)


def first_choices(states: Tensor, head: Tensor) -> Tensor:
    """Return [rows]: the likeliest token of each of states [rows, hidden], by output layer head [vocab, hidden]."""
    import torch

    return torch.cat([(rows @ head.T).argmax(-1) for rows in states.split(_ROWS_AT_ONCE)])


def agreement(states: Tensor, head: Tensor, choices: Tensor) -> float:
    """Return the share (0-1) of rows whose likeliest token is the one in `choices` [rows]."""
    return float((first_choices(states, head) == choices).double().mean())
