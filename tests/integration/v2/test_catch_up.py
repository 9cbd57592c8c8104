"""What a draft model has missed, and which of it it reads first."""

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


def test_blocks_that_one_request_left_unread_are_unread_for_the_next(vllm_installed: None) -> None:
    from serve_app.engine.vllm.worker.catch_up import UnreadBlocks

    blocks = UnreadBlocks()
    blocks.took("first", [7, 8, 9], read=True)
    blocks.mark("first", 1, read=False)  # it rests
    blocks.took("first", [4], read=False)
    blocks.gone("first")

    blocks.shares("second", [7, 8, 9])
    assert (blocks.read("second", 3), blocks.read("second", 1)) == (1, 1)
    blocks.mark("second", 1, 2, read=True)  # it reads a part
    assert blocks.read("second", 3) == 2
    blocks.took("third", [4, 9], read=True)  # new text comes into them
    assert (blocks.read("second", 3), blocks.read("third", 2)) == (3, 2)
