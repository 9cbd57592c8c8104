"""Every depth has graphs for small and large batches, and few of them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.engine.vllm.decode_graphs import (
    MOST_TOKENS,
    batch_sizes,
    capture_sizes,
    decode_graphs,
    depth_schedule,
    piecewise_sizes,
)

K_MAX = st.integers(1, 32)
MOST = st.integers(1, 2000)


@given(K_MAX)
def test_the_schedule_has_every_depth_once_and_ends_with_none(k_max: int) -> None:
    schedule = depth_schedule(k_max)
    assert [depth for _, _, depth in schedule] == list(range(k_max, -1, -1))
    assert [(first, last) for first, last, _ in schedule] == [(size, size) for size in range(1, k_max + 2)]


@given(K_MAX, MOST)
def test_graphs_reach_the_largest_batch_that_the_token_limit_allows(k_max: int, most: int) -> None:
    for tokens, sizes in decode_graphs(k_max, most).items():
        assert sizes[0] == 1
        assert sizes[-1] == min(most, MOST_TOKENS // tokens)
        assert sorted(set(sizes)) == sizes


@given(st.integers(2, 512))
def test_a_batch_is_padded_by_at_most_a_half_or_64_requests(most: int) -> None:
    assert all(large <= 1.5 * small + 1 and large - small <= 64 for small, large in pairwise(batch_sizes(most)))


@given(K_MAX, MOST)
def test_every_graph_is_among_the_sizes_that_vllm_is_given(k_max: int, most: int) -> None:
    sizes = capture_sizes(k_max, most)
    for tokens, batches in decode_graphs(k_max, most).items():
        assert {tokens * batch for batch in batches} <= set(sizes)
    assert sizes == sorted(set(sizes))


@given(K_MAX, MOST)
def test_pieces_reach_every_decode_step_of_mixed_depths_and_no_size_is_there_for_whole_steps_only(
    k_max: int, most: int
) -> None:
    largest = min(most * (k_max + 1), MOST_TOKENS)
    sizes = piecewise_sizes(k_max, most)
    assert largest <= sizes[-1] <= MOST_TOKENS
    assert sizes[-1] <= 2 * most * (k_max + 1)
    assert all(large - small <= 16 for small, large in pairwise(sizes))
    assert len(sizes) <= 51


def test_an_engine_for_few_requests_has_few_pieces() -> None:
    assert piecewise_sizes(1, 2) == [1, 2, 4, 8]
    assert (len(piecewise_sizes(4, 16)), len(piecewise_sizes(5, 32)), len(piecewise_sizes(5, 64))) == (23, 43, 51)


@pytest.mark.parametrize(("k_max", "most", "graphs"), [(4, 64, 60), (5, 64, 72), (5, 128, 83)])
def test_the_number_of_graphs_is_small(k_max: int, most: int, graphs: int) -> None:
    assert sum(map(len, decode_graphs(k_max, most).values())) == graphs
