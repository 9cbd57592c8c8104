"""Test whether two sets of token sequences come from one distribution: chi-square tests with a stated power.

    comparison = compare(with_speculation, without)
    assert comparison.p_value > ALPHA, comparison

`compare` counts what stands at each place of the sequences, single tokens and pairs of neighbours, and tests each place
by itself. Places of one sequence depend on each other, so their p-values are combined by Bonferroni's inequality, which
holds under any dependence: on equal distributions `p_value <= alpha` has probability alpha at most.

`detectable_effect` says which difference the test finds. Differences are measured as Cohen's w: for two distributions f
and g with mean m, sampled equally often, w^2 = sum (f - g)^2 / (4 m). By Cauchy and Schwarz, w is at least the total
variation, so a test with power for w = 0.1 has it for every total variation of 0.1. Both are of the categories that are
tested: tokens that share a bin, or are counted as rare, are one category.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from scipy.optimize import brentq
from scipy.stats import chi2, chi2_contingency, ncx2

END = -1
"""Fills the places after the end of a sequence that is shorter than others."""
MIN_EXPECTED = 5.0
"""Cochran's rule: the chi-square approximation needs this expected count in each cell."""


@dataclass(frozen=True, slots=True)
class ChiSquare:
    """One test of a 2 x categories table."""

    statistic: float
    degrees: int
    p_value: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The tests of all places of two sets of sequences."""

    p_value: float
    """Of all tests together."""
    place: str
    """Where the difference is largest."""
    tests: dict[str, ChiSquare]


def compare(
    first: Sequence[Sequence[int]], second: Sequence[Sequence[int]], grams: Sequence[int] = (1, 2), bins: int = 64
) -> Comparison:
    """Test each place of the sequences, for each length of `grams`; neighbours are hashed to `bins` categories."""
    length = max(map(len, (*first, *second)))
    tests = {
        f"tokens {start + 1}-{start + gram}" if gram > 1 else f"token {start + 1}": homogeneity(
            _categories(first, start, gram, bins), _categories(second, start, gram, bins)
        )
        for gram in grams
        for start in range(length - gram + 1)
    }
    place = min(tests, key=lambda name: tests[name].p_value)
    return Comparison(min(1.0, len(tests) * tests[place].p_value), place, tests)


def _categories(sequences: Sequence[Sequence[int]], start: int, gram: int, bins: int) -> Counter[int]:
    windows = (tuple(sequence[start : start + gram]) for sequence in sequences)
    padded = (window + (END,) * (gram - len(window)) for window in windows)
    if gram == 1:
        return Counter(token for (token,) in padded)
    # crc32 and not hash(): which tokens share a bin is part of the test, and must not change from run to run.
    return Counter(crc32(repr(window).encode()) % bins for window in padded)


def homogeneity(first: Mapping[int, int], second: Mapping[int, int]) -> ChiSquare:
    """Test by Pearson's chi-square that both counts come from one distribution; the samples may differ in size.

    Categories that are rare in both together are counted as one, so that each cell expects at least `MIN_EXPECTED`.
    That looks only at the sums over both samples, so it favours neither hypothesis. With one category left, nothing can
    differ, and the p-value is 1.
    """
    total_first, total_second = sum(first.values()), sum(second.values())
    if not (total_first and total_second):
        raise ValueError(f"nothing to compare: the samples have {total_first} and {total_second} entries")
    share = min(total_first, total_second) / (total_first + total_second)
    cells: list[tuple[int, int]] = []
    rare = (0, 0)
    # Commonest first, so that leftover rare categories join the rarest of the others.
    for category in sorted(
        first.keys() | second.keys(), key=lambda c: first.get(c, 0) + second.get(c, 0), reverse=True
    ):
        cell = (first.get(category, 0), second.get(category, 0))
        if sum(cell) * share >= MIN_EXPECTED:
            cells.append(cell)
        else:
            rare = (rare[0] + cell[0], rare[1] + cell[1])
    if sum(rare) * share < MIN_EXPECTED and cells:
        last = cells.pop()
        rare = (rare[0] + last[0], rare[1] + last[1])
    cells.append(rare)
    if len(cells) == 1:
        return ChiSquare(0.0, 0, 1.0)
    result = chi2_contingency(list(zip(*cells, strict=True)), correction=False)
    return ChiSquare(float(result.statistic), int(result.dof), float(result.pvalue))


def power(w: float, samples: int, categories: int, alpha: float) -> float:
    """Return the probability that `homogeneity` has a p-value of at most alpha, with this many samples on each side.

    The statistic is chi-square with noncentrality (number of all samples) * w^2 (Cohen, Statistical Power Analysis,
    chapter 7).
    """
    return float(ncx2.sf(chi2.isf(alpha, categories - 1), categories - 1, 2 * samples * w**2))


def detectable_effect(samples: int, categories: int, alpha: float, wanted_power: float) -> float:
    """Return the smallest w that this many samples on each side find with this probability."""
    return float(brentq(lambda w: power(w, samples, categories, alpha) - wanted_power, 1e-9, 1.0))
