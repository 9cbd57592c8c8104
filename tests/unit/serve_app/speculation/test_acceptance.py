"""Estimates of acceptance: a family's by position, a request's on top of it."""

from __future__ import annotations

import random
from math import exp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.speculation.acceptance import LEVEL, AcceptanceEstimator, gains_at, no_evidence, within_floor
from serve_app.speculation.families import MAX_FAMILIES, OTHER, Families, FamilyState
from serve_app.speculation.family import Family, Profile, StepCounts
from serve_app.speculation.settings import AcceptanceSettings

K_MAX = 4
SETTINGS = AcceptanceSettings(prior={"code": (0.6, 0.8)}, default_prior=(0.5,))
NEVER_FORGETS = AcceptanceSettings(
    prior={}, default_prior=(0.5,), prior_trials=10, family_memory_trials=1e12, request_prior_trials=10
)

outcomes = st.integers(1, K_MAX).flatmap(lambda drafted: st.tuples(st.just(drafted), st.integers(0, drafted)))


def seen(family: Family, *steps: tuple[int, int], settings: AcceptanceSettings = NEVER_FORGETS) -> Family:
    for drafted, accepted in steps:
        counts = StepCounts(K_MAX)
        counts.add(drafted, accepted, 0.5, None)
        family = family.after(counts, settings)
    return family


def test_a_family_starts_from_its_prior_whose_last_value_holds_for_later_positions() -> None:
    assert Family.new("code", K_MAX, SETTINGS).acceptance(SETTINGS) == pytest.approx((0.6, 0.8, 0.8, 0.8))
    assert Family.new("poems", K_MAX, SETTINGS).acceptance(SETTINGS) == pytest.approx((0.5, 0.5, 0.5, 0.5))


def test_only_positions_up_to_the_first_rejection_are_trials() -> None:
    # 3 drafted, 1 accepted: position 0 succeeded, position 1 failed, position 2 is not known.
    family = seen(Family.new("poems", K_MAX, NEVER_FORGETS), (3, 1))
    assert list(family.trials) == [1, 1, 0, 0]
    assert list(family.accepted) == [1, 0, 0, 0]
    # All of 2 accepted: there is no failure.
    family = seen(Family.new("poems", K_MAX, NEVER_FORGETS), (2, 2))
    assert list(family.trials) == [1, 1, 0, 0]
    assert list(family.accepted) == [1, 1, 0, 0]


def test_the_estimate_is_the_beta_posterior_mean() -> None:
    # Prior 0.5 with the weight of 10 trials, then 30 successes of 40 trials: (30 + 5) / (40 + 10).
    family = seen(Family.new("poems", K_MAX, NEVER_FORGETS), *[(1, 1)] * 30, *[(1, 0)] * 10)
    assert family.acceptance(NEVER_FORGETS)[0] == pytest.approx(0.7)


def test_positions_never_reached_borrow_from_the_one_before() -> None:
    # Position 0 moves from odds 1.5 (0.6) to 0.75 odds 3; the later ones from odds 4 (0.8) to odds 8.
    settings = NEVER_FORGETS.model_copy(update={"prior": {"code": (0.6, 0.8)}})
    family = seen(Family.new("code", K_MAX, settings), *[(1, 1)] * 24, *[(1, 0)] * 6, settings=settings)
    assert family.acceptance(settings) == pytest.approx((0.75, 8 / 9, 8 / 9, 8 / 9))


def test_a_familys_old_trials_fade() -> None:
    settings = NEVER_FORGETS.model_copy(update={"family_memory_trials": 2.0})
    family = seen(Family.new("poems", K_MAX, settings), (1, 1), (1, 0), settings=settings)
    assert family.accepted[0] == pytest.approx(exp(-0.5))
    assert family.trials[0] == pytest.approx(1 + exp(-0.5))


def test_totals_are_not_forgotten() -> None:
    family = seen(Family.new("poems", K_MAX, SETTINGS), *[(3, 2)] * 1000, settings=SETTINGS)
    assert (family.total_drafted, family.total_accepted) == (3000, 2000)


def profile(acceptance: tuple[float, ...] = (0.5,) * K_MAX, quickness: float = 0.0) -> Profile:
    expected = [sum(acceptance[:count]) for count in range(len(acceptance) + 1)]
    return Profile(tuple(a / (1 - a) for a in acceptance), tuple(expected), acceptance[0], quickness)


def level_of(acceptance: float) -> int:
    odds = acceptance / (1 - acceptance)
    return min(range(-100, 100), key=lambda level: abs(exp(level * LEVEL) - odds))


def test_a_new_request_is_as_its_family() -> None:
    estimator = AcceptanceEstimator(K_MAX, SETTINGS)
    belief = estimator.belief(no_evidence(0), profile((0.7, 0.6, 0.5, 0.4)), 0)
    assert (belief.steady, belief.quick) == pytest.approx((0.7, 0.7))
    assert belief.level == level_of(0.7)


def test_a_requests_steady_estimate_is_shrunk_to_its_family() -> None:
    # Family 0.5 with the weight of 10 trials, then 10 failures: 5 / 20 (nothing fades with so long a memory).
    settings = NEVER_FORGETS.model_copy(update={"request_memory_trials": 1e12})
    estimator = AcceptanceEstimator(K_MAX, settings)
    evidence = no_evidence(0)
    for step in range(1, 11):
        evidence = estimator.after(evidence, profile(), 1, 0, step)
    assert estimator.belief(evidence, profile(), 10).steady == pytest.approx(0.25)


def test_success_where_the_family_mostly_fails_says_more_than_where_it_succeeds() -> None:
    estimator = AcceptanceEstimator(K_MAX, SETTINGS)

    def steady(acceptance_at_2: float) -> float:
        shape = profile((0.5, 0.5, acceptance_at_2, 0.5))
        return estimator.belief(estimator.after(no_evidence(0), shape, 3, 3, 1), shape, 1).steady

    assert steady(0.2) > steady(0.8) > 0.5


def test_the_quick_estimate_follows_a_burst_within_a_few_tokens() -> None:
    estimator = AcceptanceEstimator(K_MAX, AcceptanceSettings())
    evidence = no_evidence(0)
    for step in range(1, 200):
        evidence = estimator.after(evidence, profile(), 1, 0, step)
    prose = estimator.belief(evidence, profile(quickness=1.0), 200)
    evidence = estimator.after(evidence, profile(), 4, 4, 200)
    copying = estimator.belief(evidence, profile(quickness=1.0), 200)
    assert prose.level < level_of(0.15)
    assert copying.level > level_of(0.4)
    assert copying.steady < 0.25


def test_an_idle_requests_estimates_return_to_what_is_usual() -> None:
    estimator = AcceptanceEstimator(K_MAX, AcceptanceSettings())
    evidence = estimator.after(no_evidence(0), profile(), 1, 0, 1)
    soon, later = estimator.belief(evidence, profile(), 2), estimator.belief(evidence, profile(), 100_000)
    assert soon.quick < soon.steady < 0.5
    assert (later.quick, later.steady) == pytest.approx((0.5, 0.5), abs=1e-6)


@pytest.mark.parametrize(("text", "low", "high"), [("steady", 0.0, 0.2), ("bursty", 0.7, 1.0)])
def test_a_family_learns_how_bursty_its_text_is(text: str, low: float, high: float) -> None:
    settings = AcceptanceSettings()
    rng = random.Random(0)
    estimator = AcceptanceEstimator(K_MAX, settings)
    family = FamilyState(Family.new("x", K_MAX, settings), Family.new("x", K_MAX, settings).profile(settings))
    evidence = no_evidence(0)
    for step in range(1, 1500):
        likely = 0.5 if text == "steady" else (0.95 if step // 40 % 2 else 0.05)
        accepted = next((n for n in range(2) if rng.random() >= likely), 2)
        belief = estimator.belief(evidence, family.profile, step)
        family.counts = StepCounts(K_MAX)
        family.counts.add(2, accepted, belief.steady, belief.quick)
        evidence = estimator.after(evidence, family.profile, 2, accepted, step)
        family.learn(settings)
    assert low <= family.profile.quickness <= high


@given(st.integers(level_of(0.005), level_of(0.995)))
def test_gains_of_a_level_are_powers_where_all_positions_are_alike(level: int) -> None:
    acceptance = exp(level * LEVEL) / (1 + exp(level * LEVEL))
    assert gains_at(level, profile()) == pytest.approx([acceptance**n for n in range(1, K_MAX + 1)])


@given(st.lists(st.floats(0.01, 0.99), min_size=K_MAX, max_size=K_MAX), st.integers(-30, 29))
def test_a_higher_level_gains_more_at_every_position(acceptance: list[float], level: int) -> None:
    shape = profile(tuple(acceptance))
    assert all(more > less for less, more in zip(gains_at(level, shape), gains_at(level + 1, shape), strict=True))


def test_a_floor_cuts_the_draft_tokens_that_would_bring_acceptance_below_it() -> None:
    # Expected accepted / drafted of 1, 2, 3, 4 tokens: 0.5, 0.375, 0.29, 0.23.
    gains = (0.5, 0.25, 0.125, 0.0625)
    assert within_floor(gains, 0.0) == gains
    assert within_floor(gains, 0.29) == (0.5, 0.25, 0.125)
    assert within_floor(gains, 0.3) == (0.5, 0.25)
    # Not even one reaches it: whether that stops the request is for its measured acceptance to say.
    assert within_floor(gains, 0.9) == (0.5,)


@settings(max_examples=40)
@given(st.lists(st.tuples(outcomes, st.integers(1, 1000)), max_size=60))
def test_any_outcomes_keep_all_estimates_probabilities(steps: list[tuple[tuple[int, int], int]]) -> None:
    settings = AcceptanceSettings()
    estimator = AcceptanceEstimator(K_MAX, settings)
    state = Families(K_MAX, settings).get("chat")
    evidence, now = no_evidence(0), 0
    for (drafted, accepted), wait in steps:
        now += wait
        belief = estimator.belief(evidence, state.profile, now)
        state.counts = StepCounts(K_MAX)
        state.counts.add(drafted, accepted, belief.steady, belief.quick)
        evidence = estimator.after(evidence, state.profile, drafted, accepted, now)
        state.learn(settings)
        assert 0 < belief.steady < 1
        assert 0 < belief.quick < 1
        assert all(0 < gain < 1 for gain in state.curve(belief.level, 0.0, 1.0).gains)
        assert all(0 < estimate < 1 for estimate in state.estimate.acceptance(settings))
        assert 0 <= state.profile.quickness <= 1


def test_names_that_requests_make_up_do_not_fill_the_memory() -> None:
    families = Families(K_MAX, SETTINGS)
    states = [families.get(f"family {index}") for index in range(MAX_FAMILIES + 10)]
    assert len(families.by_name) == MAX_FAMILIES + 1
    assert states[-1] is states[-2] is families.get(OTHER)
    assert families.get("family 0") is states[0]
