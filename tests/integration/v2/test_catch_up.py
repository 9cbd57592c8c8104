"""What a draft model has missed, and which of it it reads first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

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


def specs(*, window: bool = False) -> Any:
    from torch import float32
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    shape = {"num_kv_heads": 1, "head_size": 16, "dtype": float32}
    if window:
        return SlidingWindowSpec(block_size=16, sliding_window=64, **shape)
    return FullAttentionSpec(block_size=32, **shape)


def test_a_draft_model_is_followed_in_the_groups_of_the_kv_cache_that_hold_its_layers(vllm_installed: None) -> None:
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec, UniformTypeKVCacheSpecs

    from serve_app.engine.vllm.worker.catch_up import draft_groups

    draft = {"draft.0", "draft.1"}
    alone = [KVCacheGroupSpec(["target.0", *sorted(draft)], specs())]
    assert [(group.place, group.block_size) for group in draft_groups(alone, draft)] == [(0, 32)]
    behind = [
        KVCacheGroupSpec(["target.0"], specs(window=True)),
        KVCacheGroupSpec(["target.1", "draft.0"], specs()),
        KVCacheGroupSpec(["target.2", "draft.1"], specs()),
    ]
    assert [(group.place, group.block_size) for group in draft_groups(behind, draft)] == [(1, 32), (2, 32)]
    mixed = UniformTypeKVCacheSpecs(block_size=32, kv_cache_specs=dict.fromkeys(["target.0", *draft], specs()))
    assert [group.place for group in draft_groups([KVCacheGroupSpec(["target.0", *draft], mixed)], draft)] == [0]


def test_a_draft_model_whose_blocks_do_not_keep_the_whole_text_is_refused(vllm_installed: None) -> None:
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec

    from serve_app.engine.vllm.worker.catch_up import draft_groups

    groups = [KVCacheGroupSpec(["target.0"], specs()), KVCacheGroupSpec(["draft.0"], specs(window=True))]
    with pytest.raises(RuntimeError, match=r"layer draft\.0 has a SlidingWindowSpec.*disable_hybrid_kv_cache_manager"):
        draft_groups(groups, {"draft.0"})


def test_a_request_has_read_what_it_has_read_in_every_group(vllm_installed: None) -> None:
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec

    from serve_app.engine.vllm.worker.catch_up import DraftCatchUp

    groups = [
        KVCacheGroupSpec(["target.0"], specs(window=True)),
        KVCacheGroupSpec(["draft.0"], specs()),
        KVCacheGroupSpec(["draft.1"], specs().copy_with_new_block_size(64)),
    ]
    speculator = SimpleNamespace(
        kv_cache_config=SimpleNamespace(kv_cache_groups=groups), draft_attn_layer_names={"draft.0", "draft.1"}
    )
    states = SimpleNamespace(max_num_reqs=1, device="cpu", req_id_to_index={"first": 0})
    catch_up = DraftCatchUp(speculator, states)

    def step(new: list[Any], gone: tuple[str, ...] = ()) -> None:
        none = SimpleNamespace(req_ids=[], new_block_ids=[])
        catch_up.follow(
            SimpleNamespace(
                finished_req_ids=set(gone),
                preempted_req_ids=None,
                scheduled_new_reqs=new,
                scheduled_cached_reqs=none,
            )
        )

    def request(name: str, cached: int, *blocks: list[int]) -> Any:
        return SimpleNamespace(req_id=name, num_computed_tokens=cached, block_ids=blocks)

    step([request("first", 0, [1, 2], [3, 4, 5, 6], [7, 8])])
    catch_up._mark("first", 70, read=False)  # it rests after 70 tokens
    step([request("second", 128, [1, 2], [3, 4, 5, 6], [7, 8])], gone=("first",))
    assert catch_up._read_without_gap("second", 128) == 64  # two blocks of 32, one of 64
    catch_up._mark("second", 64, 128, read=True)
    assert catch_up._read_without_gap("second", 128) == 128
    # Blocks with the same text of another request, in one group only: that it did not read them counts.
    catch_up._groups[1].blocks.mark("second", 1, read=False)
    step([request("third", 128, [1, 2], [3, 4, 5, 6], [7, 8])], gone=("second",))
    assert catch_up._read_without_gap("third", 128) == 64
