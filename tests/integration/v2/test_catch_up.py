"""Which of the tokens that a draft model has missed it reads first."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("missing", "budget", "given"),
    [
        ([0, 0], 10, [0, 0]),
        ([3, 5], 10, [3, 5]),
        ([30, 5, 0, 5], 12, [2, 5, 0, 5]),
        ([7, 7], 7, [7, 0]),
        ([7], 0, [0]),
    ],
)
def test_the_shortest_gap_is_closed_first_within_the_budget(
    vllm_installed: None, missing: list[int], budget: int, given: list[int]
) -> None:
    import numpy as np

    from serve_app.engine.vllm.worker.catch_up import allot

    assert allot(np.array(missing), budget).tolist() == given
