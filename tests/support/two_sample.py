"""Whether two sets of token sequences come from one distribution: chi-square tests with a stated power.

    comparison = compare(with_speculation, without)
    assert comparison.p_value > ALPHA, comparison

`compare` counts what stands at each place of the sequences, single tokens and neighbours, and tests each place by
itself. Places of one sequence depend on each other, so their p-values are combined by Bonferroni's inequality, which
holds under any dependence: on equal distributions `p_value <= alpha` happens with probability alpha at most.

How large a difference goes unseen: `detectable_effect` and `samples_needed`. Sizes of differences are Cohen's w. For
two distributions f and g with mean m, sampled equally often, w^2 = sum (f - g)^2 / (4 m), and w is never below their
total variation distance (`cohen_w`): a test with power for w = 0.1 has it for every total variation of 0.1. Both are of
the categories that are tested: what shares a bin, or is counted with the rare ones, is one category.

The chi-square functions are here because the project depends on no scipy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from zlib import crc32

END = -1
"""Stands at the places after the end of a sequence that is shorter than others."""
MIN_EXPECTED = 5.0
"""Cochran's rule: the chi-square approximation wants this many expected counts in each cell."""


@dataclass(frozen=True, slots=True)
class ChiSquare:
    """One test of a 2 x categories table."""

    statistic: float
    degrees: int
    p_value: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """All places of two sets of sequences."""

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
    """Pearson's test that both counts come from one distribution; the samples may differ in size.

    Categories that are rare in both together are counted as one, so that each cell expects at least `MIN_EXPECTED`.
    That looks only at the sums over both samples, so it favours neither hypothesis. Where one cell is left, nothing
    can differ, and the p-value is 1.
    """
    total_first, total_second = sum(first.values()), sum(second.values())
    if not (total_first and total_second):
        raise ValueError(f"nothing to compare: the samples have {total_first} and {total_second} entries")
    share = min(total_first, total_second) / (total_first + total_second)
    cells: list[tuple[int, int]] = []
    rare = (0, 0)
    # Commonest first, so that what is left over at the end joins the rarest of those that stand for themselves.
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
    # Press et al., Numerical Recipes, equation 14.3.3.
    ratio = math.sqrt(total_second / total_first)
    statistic = sum((ratio * a - b / ratio) ** 2 / (a + b) for a, b in cells)
    degrees = len(cells) - 1
    return ChiSquare(statistic, degrees, chi_square_tail(statistic, degrees))


def cohen_w(f: Sequence[float], g: Sequence[float]) -> float:
    """Effect size of a difference, 0 to 1, for samples of equal size.

    w^2 = sum over cells of (p1 - p0)^2 / p0 of the 2 x categories table (Cohen, Statistical Power Analysis, 7.2), whose
    cells are f/2 and g/2, and m/2 and m/2 if there is no difference. By Cauchy and Schwarz w is at least the total
    variation, and equal to it where |f - g| is proportional to m.
    """
    return math.sqrt(sum((a - b) ** 2 / (2 * (a + b)) for a, b in zip(f, g, strict=True) if a + b))


def total_variation(f: Sequence[float], g: Sequence[float]) -> float:
    """The largest difference in probability of any event, 0 to 1."""
    return sum(abs(a - b) for a, b in zip(f, g, strict=True)) / 2


def power(w: float, samples: int, categories: int, alpha: float) -> float:
    """Probability that `homogeneity` has a p-value of at most alpha, with this many samples on each side.

    The statistic is then chi-square with noncentrality (number of all samples) * w^2 (Cohen, chapter 7).
    """
    critical = critical_value(alpha, categories - 1)
    return noncentral_chi_square_tail(critical, categories - 1, 2 * samples * w**2)


def samples_needed(w: float, categories: int, alpha: float, wanted_power: float) -> int:
    """The fewest samples on each side that find a difference of w with this probability."""
    if w <= 0:
        raise ValueError(f"no number of samples finds a difference of {w}")
    enough = next(1 << i for i in count() if power(w, 1 << i, categories, alpha) >= wanted_power)
    few = enough // 2
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if power(w, middle, categories, alpha) >= wanted_power else (middle, enough)
    return enough


def detectable_effect(samples: int, categories: int, alpha: float, wanted_power: float) -> float:
    """The smallest w that this many samples on each side find with this probability."""
    return _root(lambda w: power(w, samples, categories, alpha) - wanted_power, 0.0, 1.0)


def critical_value(alpha: float, degrees: int) -> float:
    """The statistic whose p-value is alpha."""
    high = next(2.0**i for i in count() if chi_square_tail(2.0**i, degrees) < alpha)
    return _root(lambda x: alpha - chi_square_tail(x, degrees), 0.0, high)


def _root(increasing: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(45):
        middle = (low + high) / 2
        low, high = (low, middle) if increasing(middle) >= 0 else (middle, high)
    return high


def chi_square_tail(x: float, degrees: int) -> float:
    """P(X >= x) of a chi-square distribution: the incomplete gamma function Q(degrees/2, x/2).

    1 minus the series of P below the mean, the continued fraction of Q above it (Press et al., Numerical Recipes,
    equations 6.2.5 and 6.2.7): each is exact to about 1e-13 where it is used.
    """
    if x <= 0:
        return 1.0
    a, z = degrees / 2, x / 2
    scale = math.exp(a * math.log(z) - z - math.lgamma(a))
    return 1 - scale * _gamma_series(a, z) if z < a + 1 else scale * _gamma_fraction(a, z)


def _gamma_series(a: float, z: float) -> float:
    """z^-a e^z Gamma(a) P(a, z) = 1/a + z/(a(a+1)) + z^2/(a(a+1)(a+2)) + ..."""
    term = total = 1 / a
    for n in count(1):
        term *= z / (a + n)
        total += term
        if term < total * 1e-16:
            break
    return total


def _gamma_fraction(a: float, z: float) -> float:
    """z^-a e^z Gamma(a) Q(a, z) = 1/(z+1-a- 1(1-a)/(z+3-a- 2(2-a)/(z+5-a- ...))), by Lentz's method."""
    tiny = 1e-300
    b = z + 1 - a
    c, d = 1 / tiny, 1 / b
    result = d
    for n in count(1):
        b += 2
        d = 1 / (n * (a - n) * d + b)
        c = b + n * (a - n) / c
        result *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return result


def noncentral_chi_square_tail(x: float, degrees: int, noncentrality: float) -> float:
    """P(X >= x) of a noncentral chi-square: central ones with 2j more degrees, j being Poisson(noncentrality/2)."""
    return sum(weight * chi_square_tail(x, degrees + 2 * j) for j, weight in _poisson(noncentrality / 2))


def _poisson(mean: float) -> Iterator[tuple[int, float]]:
    """Its values with their probabilities, but for the tails: 9 standard deviations away they are below 1e-15."""
    spread = 9 * math.sqrt(mean) + 20
    for j in range(max(0, int(mean - spread)), int(mean + spread) + 1):
        yield j, math.exp(j * math.log(mean) - mean - math.lgamma(j + 1)) if mean else float(j == 0)
