"""n-gram drafts on tensors are those of a plain search, and histories are found through block tables."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def torch() -> Any:
    """Not imported above: every process of the unit tests would take two seconds for it."""
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def lookup(torch: Any) -> Any:
    return import_module("serve_app.engine.vllm.ngram_lookup")


def plain_drafts(tokens: list[int], k: int, longest: int, shortest: int) -> list[int]:
    """The same in plain words: the longest suffix that stands before, the earliest place where it does."""
    for n in range(longest, shortest - 1, -1):
        for place in range(len(tokens) - n):
            if tokens[place : place + n] == tokens[-n:]:
                drafts = tokens[place + n : place + n + k]
                return drafts + [tokens[-1]] * (k - len(drafts))
    return [tokens[-1]] * k


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=24), min_size=1, max_size=4), st.integers(0, 6))
def test_every_request_gets_what_a_plain_search_finds(torch: Any, lookup: Any, texts: list[list[int]], k: int) -> None:
    width = max(map(len, texts)) + 1
    history = torch.tensor([text + [1] * (width - len(text)) for text in texts], dtype=torch.int32)
    lengths = torch.tensor([len(text) for text in texts])
    found = lookup.ngram_drafts(history, lengths, k)
    assert found.tolist() == [plain_drafts(text, k, lookup.LONGEST, lookup.SHORTEST) for text in texts]


def test_a_copied_text_is_predicted(torch: Any, lookup: Any) -> None:
    text = [7, 8, 9, 10, 11, 12, 7, 8, 9]
    assert lookup.ngram_drafts(torch.tensor([text]), torch.tensor([len(text)]), 3).tolist() == [[10, 11, 12]]


def test_in_a_mixed_batch_each_request_has_its_own_kind_of_drafts_with_their_probabilities(
    torch: Any, lookup: Any
) -> None:
    own, looked_up = torch.tensor([[1], [2]]), torch.tensor([[3, 0], [1, 3]])
    rows = torch.tensor([False, True])
    assert lookup.mixed_drafts(own, looked_up, rows).tolist() == [[1, 0], [1, 3]]
    assert lookup.mixed_drafts(own[:, :0], looked_up, rows)[1].tolist() == [1, 3]

    probabilities = torch.tensor([[[0.1, 0.9, 0.0, 0.0]], [[0.0, 0.2, 0.3, 0.5]]])
    mixed = lookup.mixed_probabilities(probabilities, looked_up, rows)
    assert mixed[0, 0].tolist() == probabilities[0, 0].tolist()
    assert mixed[1].tolist() == [[0, 1, 0, 0], [0, 0, 0, 1]]


def test_a_history_is_read_in_the_order_of_its_blocks(torch: Any, lookup: Any) -> None:
    history = lookup.TokenHistory(blocks=4, block_size=2, device=torch.device("cpu"))
    # One request in blocks 3 and 1, another in block 0; the last slot of all is padding's.
    history.write(torch.tensor([6, 7, 2, 0, -1]), torch.tensor([10, 11, 12, 20, 99]))
    read = history.read(torch.tensor([[3, 1, 0], [0, 0, 0]]), 3)
    assert read[0].tolist() == [10, 11, 12]
    assert read[1][0] == 20


def test_a_rejected_draft_is_overwritten_by_what_took_its_place(torch: Any, lookup: Any) -> None:
    history = lookup.TokenHistory(blocks=1, block_size=4, device=torch.device("cpu"))
    history.write(torch.tensor([0, 1, 2]), torch.tensor([10, 66, 67]))
    history.write(torch.tensor([1]), torch.tensor([11]))
    assert history.read(torch.tensor([[0]]), 2).tolist() == [[10, 11]]
