"""Estimates of acceptance: a category's by position, a request's on top of it."""

from __future__ import annotations

import random
from itertools import pairwise
from math import exp
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.difficulty.categories import Category
from serve_app.speculation import acceptance
from serve_app.speculation.acceptance import (
    LEVEL,
    OTHER_PRIOR,
    PRIOR,
    AcceptanceProfile,
    CategoryEvidence,
    CategoryState,
    Evidence,
    StepCounts,
    gains_at,
    within_floor,
)

K_MAX = 4
NONE = CategoryEvidence.none("general_reasoning", K_MAX)

outcomes = st.integers(1, K_MAX).flatmap(lambda drafted: st.tuples(st.just(drafted), st.integers(0, drafted)))


@pytest.fixture
def never_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing fades, so that estimates are those of the closed forms."""
    monkeypatch.setattr(acceptance, "MEMORY_TRIALS", 1e12)
    monkeypatch.setattr(acceptance, "_KEPT", ((1.0, 1.0),) * (K_MAX + 1))


def seen(evidence: CategoryEvidence, *steps: tuple[int, int]) -> CategoryEvidence:
    for drafted, accepted in steps:
        counts = StepCounts(K_MAX)
        counts.add(drafted, accepted, None)
        evidence = evidence.after(counts)
    return evidence


def test_the_priors_are_of_categories_that_the_router_finds() -> None:
    assert PRIOR.keys() <= set(get_args(Category))


def test_a_category_starts_from_its_prior_at_every_position() -> None:
    assert CategoryEvidence.none("code", K_MAX).acceptance() == pytest.approx((PRIOR["code"],) * K_MAX)
    assert NONE.acceptance() == pytest.approx((OTHER_PRIOR,) * K_MAX)


@pytest.mark.usefixtures("never_forgets")
def test_only_positions_up_to_the_first_rejection_are_trials() -> None:
    # 3 drafted, 1 accepted: position 0 succeeded, position 1 failed, position 2 is not known.
    evidence = seen(NONE, (3, 1))
    assert list(evidence.trials) == [1, 1, 0, 0]
    assert list(evidence.accepted) == [1, 0, 0, 0]
    # All of 2 accepted: there is no failure.
    evidence = seen(NONE, (2, 2))
    assert list(evidence.trials) == [1, 1, 0, 0]
    assert list(evidence.accepted) == [1, 1, 0, 0]


@pytest.mark.usefixtures("never_forgets")
def test_the_estimate_is_the_beta_posterior_mean() -> None:
    # Prior 0.5 with the weight of 10 trials, then 30 successes of 40 trials: (30 + 5) / (40 + 10).
    assert seen(NONE, *[(1, 1)] * 30, *[(1, 0)] * 10).acceptance()[0] == pytest.approx(0.7)


@pytest.mark.usefixtures("never_forgets")
def test_a_position_borrows_from_the_one_before() -> None:
    # Position 1 has 10 failures on the prior of 0.7 that position 0 came to: 7 / 20. The others were never reached.
    evidence = seen(NONE, *[(1, 1)] * 20, *[(2, 1)] * 10, *[(1, 0)] * 10)
    assert evidence.acceptance() == pytest.approx((0.7, 0.35, 0.35, 0.35))


def test_a_categorys_old_trials_fade(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance, "MEMORY_TRIALS", 2.0)
    evidence = seen(NONE, (1, 1), (1, 0))
    assert evidence.accepted[0] == pytest.approx(exp(-0.5))
    assert evidence.trials[0] == pytest.approx(1 + exp(-0.5))


def profile(likely: tuple[float, ...] = (0.5,) * K_MAX, quickness: float = 0.0) -> AcceptanceProfile:
    expected = [sum(likely[:count]) for count in range(len(likely) + 1)]
    return AcceptanceProfile(tuple(a / (1 - a) for a in likely), tuple(expected), likely[0], quickness)


def level_of(likely: float) -> int:
    odds = likely / (1 - likely)
    return min(range(-100, 100), key=lambda level: abs(exp(level * LEVEL) - odds))


def test_a_new_request_is_as_its_category() -> None:
    belief = Evidence(0).belief(profile((0.7, 0.6, 0.5, 0.4)), 0)
    assert (belief.steady, belief.quick) == pytest.approx((0.7, 0.7))
    assert belief.level == level_of(0.7)


@pytest.mark.usefixtures("never_forgets")
def test_a_requests_steady_estimate_is_shrunk_to_its_category() -> None:
    # Category 0.5 with the weight of 30 trials, then 30 failures: 15 / 60.
    evidence = Evidence(0)
    for step in range(1, 31):
        evidence = evidence.after(profile(), 1, 0, step)
    assert evidence.belief(profile(), 30).steady == pytest.approx(0.25)


def test_success_where_the_category_mostly_fails_says_more_than_where_it_succeeds() -> None:

    def steady(likely_at_2: float) -> float:
        shape = profile((0.5, 0.5, likely_at_2, 0.5))
        return Evidence(0).after(shape, 3, 3, 1).belief(shape, 1).steady

    assert steady(0.2) > steady(0.8) > 0.5


def test_the_quick_estimate_follows_a_burst_within_a_few_tokens() -> None:
    evidence = Evidence(0)
    for step in range(1, 200):
        evidence = evidence.after(profile(), 1, 0, step)
    prose = evidence.belief(profile(quickness=1.0), 200)
    evidence = evidence.after(profile(), 4, 4, 200)
    copying = evidence.belief(profile(quickness=1.0), 200)
    assert prose.level < level_of(0.15)
    assert copying.level > level_of(0.4)
    assert copying.steady < 0.25


def test_an_idle_requests_estimates_return_to_what_is_usual() -> None:
    evidence = Evidence(0).after(profile(), 1, 0, 1)
    soon, later = evidence.belief(profile(), 2), evidence.belief(profile(), 100_000)
    assert soon.quick < soon.steady < 0.5
    assert (later.quick, later.steady) == pytest.approx((0.5, 0.5), abs=1e-6)


@pytest.mark.parametrize(("text", "low", "high"), [("steady", 0.0, 0.2), ("bursty", 0.7, 1.0)])
def test_a_category_learns_how_bursty_its_text_is(text: str, low: float, high: float) -> None:
    rng = random.Random(0)
    category = CategoryState("code", K_MAX)
    evidence = Evidence(0)
    for step in range(1, 1500):
        likely = 0.5 if text == "steady" else (0.95 if step // 40 % 2 else 0.05)
        accepted = next((n for n in range(2) if rng.random() >= likely), 2)
        belief = evidence.belief(category.profile, step)
        category.counts.add(2, accepted, belief)
        evidence = evidence.after(category.profile, 2, accepted, step)
        category.learn()
    assert low <= category.profile.quickness <= high


@given(st.integers(level_of(0.005), level_of(0.995)))
def test_gains_of_a_level_are_powers_where_all_positions_are_alike(level: int) -> None:
    likely = exp(level * LEVEL) / (1 + exp(level * LEVEL))
    assert gains_at(level, profile()) == pytest.approx([likely**n for n in range(1, K_MAX + 1)])


@given(st.lists(st.floats(0.01, 0.99), min_size=K_MAX, max_size=K_MAX), st.integers(-30, 29))
def test_a_higher_level_gains_more_at_every_position(likely: list[float], level: int) -> None:
    shape = profile(tuple(likely))
    assert all(more > less for less, more in zip(gains_at(level, shape), gains_at(level + 1, shape), strict=True))


def test_a_floor_cuts_the_draft_tokens_that_would_bring_acceptance_below_it() -> None:
    # Expected accepted / drafted of 1, 2, 3, 4 tokens: 0.5, 0.375, 0.29, 0.23.
    gains = (0.5, 0.25, 0.125, 0.0625)
    assert within_floor(gains, 0.0) == gains
    assert within_floor(gains, 0.29) == (0.5, 0.25, 0.125)
    assert within_floor(gains, 0.3) == (0.5, 0.25)
    # Not even one reaches it: whether that stops the request is for its measured acceptance to say.
    assert within_floor(gains, 0.9) == (0.5,)


@given(st.lists(st.tuples(outcomes, st.integers(1, 1000)), max_size=60))
def test_any_outcomes_keep_all_estimates_probabilities(steps: list[tuple[tuple[int, int], int]]) -> None:
    state = CategoryState("creative", K_MAX)
    evidence, now = Evidence(0), 0
    for (drafted, accepted), wait in steps:
        now += wait
        belief = evidence.belief(state.profile, now)
        state.counts.add(drafted, accepted, belief)
        evidence = evidence.after(state.profile, drafted, accepted, now)
        state.learn()
        assert 0 < belief.steady < 1
        assert 0 < belief.quick < 1
        output = state.curve(belief.level, 0.0, 1.0).output
        assert all(0 < more - less < 1 for less, more in pairwise(output))
        assert all(0 < estimate < 1 for estimate in state.evidence.acceptance())
        assert 0 <= state.profile.quickness <= 1
