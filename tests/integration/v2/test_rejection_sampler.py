"""V2's rejection sampler keeps the target's distribution, whatever was drafted."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
from scipy.stats import chisquare

from tests.support.v2_on_cpu.engine import Host

LOGITS: Final = [[0.0, 0.5, 1.0, 1.5, 2.0], [2.0, 0.0, 1.0, 0.0, 1.0], [1.0, 1.0, 0.0, 2.0, 0.5]]
REQUESTS: Final = 120
"""The interpreter takes 30 ms for each; `tests/long` has more of them."""
ALPHA: Final = 1e-4


def expected(row: int, temperature: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    weights = np.exp(np.array(LOGITS[row]) / temperature)
    probabilities: np.ndarray[tuple[int], np.dtype[np.float64]] = weights / weights.sum()
    return probabilities


def test_each_token_has_the_targets_distribution(host: Host) -> None:
    check_distribution(host, [4, 0], REQUESTS, 0.8)


def check_distribution(host: Host, drafts: list[int], requests: int, temperature: float) -> None:
    answers = host.sample_with_drafts(LOGITS, drafts, requests, temperature)

    first = Counter(tokens[0] for tokens in answers)
    # Later rows of logits hold after the drafts, so only for those whose tokens are the drafts.
    second = Counter(tokens[1] for tokens in answers if tokens[0] == drafts[0])
    third = Counter(tokens[2] for tokens in answers if tokens[:2] == drafts)
    for row, counts in enumerate((first, second, third)):
        seen = [counts[token] for token in range(5)]
        assert chisquare(seen, expected(row, temperature) * sum(seen)).pvalue > ALPHA, row
    assert sum(first.values()) == requests
    assert {len(tokens) for tokens in answers} == {1, 2, 3}
    for tokens in answers:
        accepted = next((place for place, draft in enumerate(drafts) if tokens[place] != draft), len(drafts))
        assert len(tokens) == accepted + 1


def test_a_greedy_request_gets_the_most_likely_tokens(host: Host) -> None:
    # Temperature 0 is what vLLM calls greedy; the logits are as they are then.
    [rejected] = host.sample_with_drafts(LOGITS, [4, 1], 1, 1e-6)
    [accepted] = host.sample_with_drafts(LOGITS, [4, 0], 1, 1e-6)

    assert rejected == [4, 0]
    assert accepted == [4, 0, 3]
