"""The test of equal distribution keeps what it promises: its false alarms, and what it finds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.two_sample import (
    ChiSquare,
    chi_square_tail,
    cohen_w,
    compare,
    critical_value,
    detectable_effect,
    homogeneity,
    noncentral_chi_square_tail,
    power,
    samples_needed,
    total_variation,
)

SURPRISE = 1e-4
"""Counts of simulated runs are bounded by what a binomial distribution exceeds this rarely; seeds are fixed."""
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


def binomial_tail(successes: int, runs: int, probability: float) -> float:
    """P(X >= successes)."""
    log_p, log_q = math.log(probability), math.log1p(-probability)
    return math.fsum(
        math.exp(
            math.lgamma(runs + 1) - math.lgamma(k + 1) - math.lgamma(runs - k + 1) + k * log_p + (runs - k) * log_q
        )
        for k in range(successes, runs + 1)
    )


def at_most(probability: float, successes: int, runs: int) -> bool:
    """Whether this many successes are no surprise if each has at most this probability."""
    return binomial_tail(successes, runs, probability) > SURPRISE


def at_least(probability: float, successes: int, runs: int) -> bool:
    return at_most(1 - probability, runs - successes, runs)


def counts(random: np.random.Generator, samples: int, distribution: Floats) -> Mapping[int, int]:
    return dict(enumerate(random.multinomial(samples, distribution).tolist()))


def rejections(f: Floats, g: Floats, samples: tuple[int, int], alpha: float, runs: int, seed: int) -> int:
    random = np.random.default_rng(seed)
    tests = (homogeneity(counts(random, samples[0], f), counts(random, samples[1], g)) for _ in range(runs))
    return sum(test.p_value <= alpha for test in tests)


def language_model(categories: int, seed: int = 1) -> Floats:
    """Tokens as a language model gives them: a few common ones, many rare ones."""
    logits = np.random.default_rng(seed).normal(0, 1.5, categories)
    weights: Floats = np.exp(logits) / np.exp(logits).sum()
    return weights


def hardest_pair(categories: int, difference: float) -> tuple[Floats, Floats]:
    """Distributions whose w is no larger than their total variation: every token is off by the same ratio."""
    signs = np.resize([1, -1], categories)
    middle = np.full(categories, 1 / categories)
    return middle * (1 + difference * signs), middle * (1 - difference * signs)


@pytest.mark.parametrize(
    ("x", "degrees", "tail"),
    # The usual table of critical values.
    [
        (3.841, 1, 0.05),
        (6.635, 1, 0.01),
        (5.991, 2, 0.05),
        (18.307, 10, 0.05),
        (29.588, 10, 0.001),
        (124.342, 100, 0.05),
    ],
)
def test_chi_square_tails_are_those_of_the_printed_tables(x: float, degrees: int, tail: float) -> None:
    assert chi_square_tail(x, degrees) == pytest.approx(tail, rel=1e-3)
    assert critical_value(tail, degrees) == pytest.approx(x, abs=1e-3)


@given(x=st.floats(1e-3, 400), half=st.integers(1, 60))
def test_chi_square_tails_with_even_degrees_are_poisson_sums(x: float, half: int) -> None:
    poisson = math.fsum(math.exp(j * math.log(x / 2) - x / 2 - math.lgamma(j + 1)) for j in range(half))
    assert chi_square_tail(x, 2 * half) == pytest.approx(poisson, rel=1e-11)


@given(x=st.floats(1e-3, 400), degrees=st.integers(1, 120))
def test_chi_square_tails_start_at_the_normal_distribution_and_obey_the_recurrence(x: float, degrees: int) -> None:
    assert chi_square_tail(x, 1) == pytest.approx(math.erfc(math.sqrt(x / 2)), rel=1e-11)
    # Q(a + 1, z) = Q(a, z) + z^a e^-z / Gamma(a + 1)
    step = math.exp(degrees / 2 * math.log(x / 2) - x / 2 - math.lgamma(degrees / 2 + 1))
    assert chi_square_tail(x, degrees + 2) == pytest.approx(chi_square_tail(x, degrees) + step, rel=1e-11)


@given(x=st.floats(0.01, 100), noncentrality=st.floats(0, 200))
def test_noncentral_tails_with_one_degree_are_those_of_a_shifted_normal(x: float, noncentrality: float) -> None:
    # P((Z + m)^2 >= x) = P(Z >= sqrt(x) - m) + P(Z <= -sqrt(x) - m)
    root, shift = math.sqrt(x), math.sqrt(noncentrality)
    normal = (math.erfc((root - shift) / math.sqrt(2)) + math.erfc((root + shift) / math.sqrt(2))) / 2
    assert noncentral_chi_square_tail(x, 1, noncentrality) == pytest.approx(normal, abs=1e-12)


@pytest.mark.parametrize(
    ("degrees", "small", "medium"),
    # Cohen 1992, A Power Primer, table 2: samples of both groups together for w = 0.1 and 0.3, alpha 0.05, power 0.8.
    [(1, 785, 87), (2, 964, 107), (3, 1090, 121), (4, 1194, 133), (6, 1362, 151)],
)
def test_sample_sizes_are_those_of_cohens_table(degrees: int, small: int, medium: int) -> None:
    for w, total in ((0.1, small), (0.3, medium)):
        assert 2 * samples_needed(w, degrees + 1, 0.05, 0.8) == pytest.approx(total, abs=2)


@settings(max_examples=20)
@given(samples=st.integers(50, 20_000), categories=st.integers(2, 80), alpha=st.sampled_from([0.05, 0.001, 1e-5]))
def test_the_detectable_effect_needs_just_these_samples(samples: int, categories: int, alpha: float) -> None:
    w = detectable_effect(samples, categories, alpha, 0.9)
    if w < 1:
        assert power(w, samples, categories, alpha) == pytest.approx(0.9, abs=1e-6)
        assert abs(samples_needed(w, categories, alpha, 0.9) - samples) <= 1
    assert power(0, samples, categories, alpha) == pytest.approx(alpha)


def test_no_number_of_samples_finds_nothing() -> None:
    with pytest.raises(ValueError, match="no number of samples"):
        samples_needed(0, 4, 0.05, 0.9)


@given(
    f=st.lists(st.floats(0, 1), min_size=5, max_size=5).filter(any),
    g=st.lists(st.floats(0, 1), min_size=5, max_size=5).filter(any),
)
def test_the_effect_size_is_between_the_total_variation_and_one(f: list[float], g: list[float]) -> None:
    f, g = [x / sum(f) for x in f], [x / sum(g) for x in g]
    assert total_variation(f, g) - 1e-12 <= cohen_w(f, g) <= 1 + 1e-12


def test_an_effect_size_worked_out_by_hand() -> None:
    # Table 0.3 0.2 / 0.1 0.4 against 0.2 0.3 / 0.2 0.3: 0.01 / 0.2 * 2 + 0.01 / 0.3 * 2 = 1/6.
    assert cohen_w([0.6, 0.4], [0.2, 0.8]) == pytest.approx(math.sqrt(1 / 6))
    assert total_variation([0.6, 0.4], [0.2, 0.8]) == pytest.approx(0.4)
    assert cohen_w([1, 0], [0, 1]) == total_variation([1, 0], [0, 1]) == 1
    f, g = hardest_pair(6, 0.1)
    assert cohen_w(f.tolist(), g.tolist()) == pytest.approx(0.1) == total_variation(f.tolist(), g.tolist())


def test_a_statistic_worked_out_by_hand() -> None:
    # 60 40 / 40 60: all expected 50, 4 * 10^2 / 50 = 8.
    test = homogeneity({0: 60, 1: 40}, {0: 40, 1: 60})
    assert test.degrees == 1
    assert test.statistic == pytest.approx(8)
    assert test.p_value == pytest.approx(math.erfc(2))
    # 20 10 / 20 40 is 20/3 away from 40/3 50/3 / 80/3 100/3.
    expected = (20 / 3) ** 2 * (3 / 40 + 3 / 50 + 3 / 80 + 3 / 100)
    assert homogeneity({0: 20, 1: 10}, {0: 20, 1: 40}).statistic == pytest.approx(expected)


def test_rare_categories_count_as_one_that_is_not_rare() -> None:
    common = {0: 50, 1: 30}
    # 4 + 4 + 4 of each side: three categories of 8 together are too rare, one of 24 is not.
    assert homogeneity(common | {2: 4, 3: 4, 4: 4}, common | {5: 4, 6: 4, 7: 4}).degrees == 2
    # Alone, such a category joins the rarest of the others: 50 and 34.
    assert homogeneity(common | {2: 4}, common | {3: 4}).degrees == 1
    # Where all are one cell nothing can differ; of samples of different size, rounding would say otherwise.
    assert homogeneity({0: 1489, 1: 11}, {0: 497, 2: 3}) == ChiSquare(0, 0, 1)
    with pytest.raises(ValueError, match="0 and 1 entries"):
        homogeneity({}, {0: 1})


@pytest.mark.parametrize(("samples", "categories"), [((100, 100), 8), ((300, 300), 64), ((2000, 500), 64)])
def test_false_alarms_are_as_frequent_as_alpha(samples: tuple[int, int], categories: int) -> None:
    runs, same = 2000, language_model(categories)
    for alpha in (0.05, 0.001):
        alarms = rejections(same, same, samples, alpha, runs, seed=2)
        assert at_most(alpha, alarms, runs)
        assert at_least(alpha, alarms, runs)


@pytest.mark.parametrize(("difference", "categories", "alpha"), [(0.3, 8, 0.05), (0.15, 40, 0.001), (0.1, 64, 1e-4)])
def test_a_difference_is_found_as_often_as_stated(difference: float, categories: int, alpha: float) -> None:
    runs, pair = 500, hardest_pair(categories, difference)
    samples = samples_needed(difference, categories, alpha, 0.9)
    found = rejections(*pair, (samples, samples), alpha, runs, seed=3)
    assert at_least(0.9, found, runs)
    # And not with far fewer samples: the number is not a guess to the safe side.
    assert not at_least(0.9, rejections(*pair, (samples // 2, samples // 2), alpha, runs, seed=4), runs)


@pytest.mark.parametrize("moved", [(0, 1), (1, 2)])
def test_a_total_variation_is_found_at_least_as_often_as_its_size_as_an_effect_says(moved: tuple[int, int]) -> None:
    same = np.sort(language_model(64))[::-1]
    difference = 0.05
    other = same.copy()
    other[moved[0]] -= difference
    other[moved[1]] += difference
    samples = samples_needed(difference, 64, 0.001, 0.9)
    assert at_least(0.9, rejections(same, other, (samples, samples), 0.001, 200, seed=5), 200)


class Chain:
    """Sequences whose tokens depend on those before."""

    def __init__(self, next_token: Callable[[int, list[int]], Floats], length: int) -> None:
        self._next_token, self._length = next_token, length

    def sample(self, random: np.random.Generator, number: int) -> list[list[int]]:
        sequences: list[list[int]] = [[] for _ in range(number)]
        for place in range(self._length):
            groups: dict[tuple[int, ...], list[list[int]]] = {}
            for sequence in sequences:
                groups.setdefault(tuple(sequence[-1:]), []).append(sequence)
            for last, group in groups.items():
                distribution = self._next_token(place, list(last))
                for sequence, token in zip(
                    group, random.choice(len(distribution), len(group), p=distribution).tolist(), strict=True
                ):
                    sequence.append(token)
        return sequences


def test_places_that_depend_on_each_other_raise_no_more_false_alarms_than_alpha() -> None:
    rows = [language_model(8, seed) for seed in range(8)]
    chain = Chain(lambda place, last: rows[last[0]] if last else rows[0], length=4)
    random, runs, alpha = np.random.default_rng(6), 400, 0.05
    results = [compare(chain.sample(random, 150), chain.sample(random, 150)) for _ in range(runs)]
    assert {len(result.tests) for result in results} == {7}  # four tokens and three pairs
    assert at_most(alpha, sum(result.p_value <= alpha for result in results), runs)


def test_a_difference_in_what_follows_what_is_found_where_it_is() -> None:
    # Every token is uniform at every place; the third repeats the second a little more often in one of the two.
    def repeating(extra: float) -> Chain:
        def next_token(place: int, last: list[int]) -> Floats:
            distribution = np.full(4, (1 - extra) / 4 if place == 2 else 1 / 4)
            if place == 2:
                distribution[last[0]] += extra
            return distribution

        return Chain(next_token, length=4)

    pairs = [[1 / 16] * 16, [(1 - 0.2) / 16 + 0.2 / 4 * (i % 5 == 0) for i in range(16)]]
    alpha, tests = 0.001, 7
    samples = samples_needed(cohen_w(*pairs), 16, alpha / tests, 0.9)
    random = np.random.default_rng(7)
    results = [compare(repeating(0.2).sample(random, samples), repeating(0).sample(random, samples)) for _ in range(60)]
    found = [result.place for result in results if result.p_value <= alpha]
    assert at_least(0.9, len(found), len(results))
    assert set(found) == {"tokens 2-3"}


def test_a_sequence_that_ends_early_differs_at_the_places_after_its_end() -> None:
    whole, cut = [[1, 2, 3]] * 100, [[1, 2, 3]] * 50 + [[1, 2]] * 50
    result = compare(whole, cut, grams=(1,))
    assert (result.place, list(result.tests)) == ("token 3", ["token 1", "token 2", "token 3"])
    # 100 0 / 50 50, three tests.
    assert result.p_value == pytest.approx(3 * chi_square_tail(200 / 3, 1))


@given(
    table=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=30).filter(
        lambda rows: all(sum(column) for column in zip(*rows, strict=True))
    ),
    factor=st.integers(1, 7),
)
def test_samples_in_the_same_proportions_do_not_differ(table: list[tuple[int, int]], factor: int) -> None:
    first, second = (dict(enumerate(column)) for column in zip(*table, strict=True))
    test = homogeneity(first, second)
    assert 0 <= test.p_value <= 1
    assert 0 <= test.degrees < len(table)
    same = homogeneity(first, {category: factor * number for category, number in first.items()})
    assert same.statistic == pytest.approx(0, abs=1e-9)
    assert same.p_value == pytest.approx(1, abs=1e-4)
