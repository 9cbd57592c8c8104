"""The two-sample test keeps its promises: how often it raises a false alarm, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from scipy.stats import binom

from tests.support.two_sample import ChiSquare, compare, detectable_effect, homogeneity, power

SURPRISE = 1e-4
"""Counts of simulated runs are bounded by what a binomial distribution exceeds this rarely; seeds are fixed."""
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


def at_most(probability: float, successes: int, runs: int) -> bool:
    """Return whether this many successes are no surprise if each has at most this probability."""
    return bool(binom.sf(successes - 1, runs, probability) > SURPRISE)


def at_least(probability: float, successes: int, runs: int) -> bool:
    return at_most(1 - probability, runs - successes, runs)


def counts(random: np.random.Generator, samples: int, distribution: Floats) -> Mapping[int, int]:
    return dict(enumerate(random.multinomial(samples, distribution).tolist()))


def p_values(f: Floats, g: Floats, samples: tuple[int, int], runs: int, seed: int) -> Floats:
    random = np.random.default_rng(seed)
    tests = (homogeneity(counts(random, samples[0], f), counts(random, samples[1], g)) for _ in range(runs))
    return np.array([test.p_value for test in tests])


def rejections(f: Floats, g: Floats, samples: tuple[int, int], alpha: float, runs: int, seed: int) -> int:
    return int((p_values(f, g, samples, runs, seed) <= alpha).sum())


def language_model(categories: int, seed: int = 1) -> Floats:
    """Return tokens as a language model samples them: a few common ones, many rare ones."""
    logits = np.random.default_rng(seed).normal(0, 1.5, categories)
    weights: Floats = np.exp(logits) / np.exp(logits).sum()
    return weights


@pytest.mark.parametrize(
    ("degrees", "small", "medium"),
    # Cohen 1992, A Power Primer, table 2: samples of both groups together for w = 0.1 and 0.3, alpha 0.05, power 0.8.
    [(1, 785, 87), (2, 964, 107), (3, 1090, 121), (4, 1194, 133), (6, 1362, 151)],
)
def test_detectable_effects_are_those_of_cohens_table(degrees: int, small: int, medium: int) -> None:
    for w, total in ((0.1, small), (0.3, medium)):
        assert detectable_effect(total // 2, degrees + 1, 0.05, 0.8) == pytest.approx(w, rel=0.02)
    assert power(0, small, degrees + 1, 0.05) == pytest.approx(0.05)


def test_a_statistic_worked_out_by_hand() -> None:
    # 60 40 / 40 60: all expected 50, 4 * 10^2 / 50 = 8.
    test = homogeneity({0: 60, 1: 40}, {0: 40, 1: 60})
    assert test.degrees == 1
    assert test.statistic == pytest.approx(8)
    # 20 10 / 20 40 is 20/3 away from 40/3 50/3 / 80/3 100/3.
    expected = (20 / 3) ** 2 * (3 / 40 + 3 / 50 + 3 / 80 + 3 / 100)
    assert homogeneity({0: 20, 1: 10}, {0: 20, 1: 40}).statistic == pytest.approx(expected)


def test_rare_categories_count_as_one_that_is_not_rare() -> None:
    common = {0: 50, 1: 30}
    # 4 + 4 + 4 of each side: three categories of 8 together are too rare, one of 24 is not.
    assert homogeneity(common | {2: 4, 3: 4, 4: 4}, common | {5: 4, 6: 4, 7: 4}).degrees == 2
    # Alone, such a category joins the rarest of the others: 50 and 34.
    assert homogeneity(common | {2: 4}, common | {3: 4}).degrees == 1
    # If all are one cell, nothing can differ.
    assert homogeneity({0: 1489, 1: 11}, {0: 497, 2: 3}) == ChiSquare(0, 0, 1)
    with pytest.raises(ValueError, match="0 and 1 entries"):
        homogeneity({}, {0: 1})


@pytest.mark.parametrize(("samples", "categories"), [((100, 100), 8), ((300, 300), 64), ((2000, 500), 64)])
def test_false_alarms_are_as_frequent_as_alpha(samples: tuple[int, int], categories: int) -> None:
    runs, same = 1000, language_model(categories)
    found = p_values(same, same, samples, runs, seed=2)
    for alpha in (0.05, 0.001):
        alarms = int((found <= alpha).sum())
        assert at_most(alpha, alarms, runs)
        assert at_least(alpha, alarms, runs)


@pytest.mark.parametrize(("samples", "categories", "alpha"), [(100, 8, 0.05), (750, 40, 0.001), (2000, 64, 1e-4)])
def test_a_difference_is_found_as_often_as_stated(samples: int, categories: int, alpha: float) -> None:
    runs = 300
    # The hardest pair: every token is off by the same ratio, so w is the total variation.
    difference = detectable_effect(samples, categories, alpha, 0.9) * np.resize([1, -1], categories)
    pair = (1 + difference) / categories, (1 - difference) / categories
    assert at_least(0.9, rejections(*pair, (samples, samples), alpha, runs, seed=3), runs)
    # And not with far fewer samples: the number is not a guess to the safe side.
    assert not at_least(0.9, rejections(*pair, (samples // 2, samples // 2), alpha, runs, seed=4), runs)


@pytest.mark.parametrize("moved", [(0, 1), (1, 2)])
def test_a_total_variation_is_found_at_least_as_often_as_its_size_as_an_effect(moved: tuple[int, int]) -> None:
    samples = 1500
    same = np.sort(language_model(64))[::-1]
    difference = detectable_effect(samples, 64, 0.001, 0.9)
    assert same[moved[0]] > 0.1
    other = same.copy()
    other[moved[0]] -= min(difference, same[moved[0]])
    other[moved[1]] += min(difference, same[moved[0]])
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
    random, runs, alpha = np.random.default_rng(6), 200, 0.05
    results = [compare(chain.sample(random, 150), chain.sample(random, 150)) for _ in range(runs)]
    assert {len(result.tests) for result in results} == {7}  # four tokens and three pairs
    assert at_most(alpha, sum(result.p_value <= alpha for result in results), runs)


def test_a_difference_in_a_pair_of_neighbours_is_found_at_its_place() -> None:
    # Every token is uniform at every place; the third repeats the second a little more often in one of the two.
    def repeating(extra: float) -> Chain:
        def next_token(place: int, last: list[int]) -> Floats:
            distribution = np.full(4, (1 - extra) / 4 if place == 2 else 1 / 4)
            if place == 2:
                distribution[last[0]] += extra
            return distribution

        return Chain(next_token, length=4)

    random = np.random.default_rng(7)
    results = [compare(repeating(0.3).sample(random, 750), repeating(0).sample(random, 750)) for _ in range(40)]
    found = [result.place for result in results if result.p_value <= 0.001]
    assert at_least(0.9, len(found), len(results))
    assert set(found) == {"tokens 2-3"}


def test_a_sequence_that_ends_early_differs_at_the_places_after_its_end() -> None:
    whole, cut = [[1, 2, 3]] * 100, [[1, 2, 3]] * 50 + [[1, 2]] * 50
    result = compare(whole, cut, grams=(1,))
    assert (result.place, list(result.tests)) == ("token 3", ["token 1", "token 2", "token 3"])
    assert result.tests["token 3"].statistic == pytest.approx(200 / 3)  # 100 0 / 50 50
    assert result.p_value == pytest.approx(3 * result.tests["token 3"].p_value)
