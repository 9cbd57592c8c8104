"""Which tier a prompt gets: goals and limits around what its difficulty deserves."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.difficulty.categories import Category
from router.difficulty.classify import Classification
from router.prediction import NEVER, UPPER_Z, Estimate, Prediction
from router.registry import TIER_NAMES, TierName
from router.request import Constraints, InferenceRequest
from router.selection import Selection, broken_limits, given_limits, select
from tests.unit.router.profiles import small_profile

PROFILE = small_profile()  # 1-3 eco, 4-5 balanced, 6-8 performance, 9-10 ultra
EASY, MIDDLING, HARD, HARDEST = 1, 5, 7, 10


def takes(ttft_ms: float = 100, total_ms: float = 1000, cost_usd: float = 0.01, energy_wh: float = 0.2) -> Prediction:
    return Prediction(
        ttft_ms=Estimate(ttft_ms, 0),
        total_ms=Estimate(total_ms, 0),
        cost_usd=Estimate(cost_usd, 0),
        energy_wh=Estimate(energy_wh, 0),
        co2_g=Estimate(energy_wh / 2, 0),
        completion_tokens=Estimate(50, 0),
        ms_per_token=Estimate(18, 0),
        runs=3,
    )


Predictions = dict[TierName, Prediction]
ALIKE: Predictions = {name: takes() for name in TIER_NAMES}
# A stronger tier takes longer to start, is faster then, and costs more.
TYPICAL: Predictions = {
    "eco": takes(ttft_ms=100, total_ms=4000, cost_usd=0.001, energy_wh=0.1),
    "balanced": takes(ttft_ms=200, total_ms=3000, cost_usd=0.002, energy_wh=0.2),
    "performance": takes(ttft_ms=400, total_ms=2000, cost_usd=0.004, energy_wh=0.4),
    "ultra": takes(ttft_ms=800, total_ms=1000, cost_usd=0.008, energy_wh=0.8),
}


def selected(
    difficulty: int, predictions: Predictions = TYPICAL, category: Category = "general_reasoning", **body: Any
) -> Selection:
    request = InferenceRequest.model_validate({"prompt": "x"} | body)
    rated = Classification(category, difficulty, float(difficulty), ())
    return select(request, rated, PROFILE, predictions.__getitem__)


def tier(difficulty: int, predictions: Predictions = TYPICAL, category: Category = "math", **body: Any) -> str:
    return selected(difficulty, predictions, category, **body).tier


def rank(name: TierName) -> int:
    return TIER_NAMES.index(name)


# --- without limits ---


@pytest.mark.parametrize(
    "body", [{}, {"goal": "better"}, {"goal": "greener"}, {"mode": "manual", "power": 95}], ids=str
)
def test_without_limits_and_goal_nothing_is_predicted(body: dict[str, Any]) -> None:
    assert selected(MIDDLING, {}, **body).candidates == ()


@pytest.mark.parametrize(
    ("goal", "tiers"),
    [
        (None, "eco eco eco balanced balanced performance performance performance ultra ultra"),
        ("cheaper", "eco eco eco eco eco balanced balanced performance performance performance"),
        ("greener", "eco eco eco eco eco balanced balanced performance performance performance"),
        ("better", "eco balanced balanced performance performance performance ultra ultra ultra ultra"),
    ],
)
def test_a_goal_shifts_a_prompt_by_two_points_of_difficulty(goal: str | None, tiers: str) -> None:
    assert [tier(difficulty, goal=goal) for difficulty in range(1, 11)] == tiers.split()


@pytest.mark.parametrize("goal", ["cheaper", "greener", "faster"])
def test_no_goal_lowers_the_tier_of_a_safety_critical_prompt(goal: str) -> None:
    for difficulty in range(1, 11):
        assert rank(tier(difficulty, category="safety_critical", goal=goal)) >= rank(tier(difficulty))  # type: ignore[arg-type]


def test_better_raises_a_safety_critical_prompt_too() -> None:
    assert tier(HARD, category="safety_critical", goal="better") == "ultra"


def test_faster_takes_the_fastest_of_the_tiers_that_are_good_enough() -> None:
    assert tier(EASY, goal="faster") == "ultra"
    eco_fastest = TYPICAL | {"eco": takes(total_ms=10)}
    assert tier(EASY, eco_fastest, goal="faster") == "eco"
    assert tier(MIDDLING, eco_fastest, goal="faster") == "ultra"


def test_faster_takes_no_stronger_tier_for_a_tiny_gain() -> None:
    assert tier(MIDDLING, ALIKE, goal="faster") == "balanced"
    a_little = ALIKE | {"ultra": takes(total_ms=950)}
    assert tier(MIDDLING, a_little, goal="faster") == "balanced"
    clearly = ALIKE | {"ultra": takes(total_ms=800)}
    assert tier(MIDDLING, clearly, goal="faster") == "ultra"


# --- within limits ---


def test_limits_that_the_wanted_tier_keeps_need_no_other_prediction() -> None:
    chosen = selected(MIDDLING, {"balanced": TYPICAL["balanced"]}, constraints={"max_ttft_ms": 200})
    assert (chosen.tier, chosen.power, chosen.broken) == ("balanced", 46, ())


def test_the_nearest_tier_that_keeps_the_limits_is_taken_with_the_nearest_power() -> None:
    chosen = selected(HARDEST, constraints={"max_cost_usd": 0.005})
    assert (chosen.wanted, chosen.tier, chosen.power, chosen.broken) == ("ultra", "performance", 80, ())
    chosen = selected(EASY, constraints={"max_total_ms": 2500})
    assert (chosen.wanted, chosen.tier, chosen.power) == ("eco", "performance", 51)


def test_of_two_tiers_as_near_the_stronger_is_selected() -> None:
    slow = ALIKE | {"balanced": takes(ttft_ms=9000)}
    assert tier(MIDDLING, slow, constraints={"max_ttft_ms": 500}) == "performance"


def test_all_limits_must_be_kept_at_once() -> None:
    both = {"max_total_ms": 3500, "max_energy_wh": 0.3}
    assert tier(HARDEST, constraints=both) == tier(EASY, constraints=both) == "balanced"


def test_if_no_tier_keeps_the_limits_the_smallest_violation_decides() -> None:
    chosen = selected(HARDEST, constraints={"max_ttft_ms": 50, "max_energy_wh": 10})
    assert chosen.tier == "eco"
    assert [violation.limit for violation in chosen.broken] == ["max_ttft_ms"]
    # eco: 8 times too slow and cheap enough; ultra: 2 and 8 times; balanced: 6 and 2; performance: 4 and 4.
    assert tier(EASY, constraints={"max_total_ms": 500, "max_cost_usd": 0.001}) == "performance"


def test_of_tiers_with_equal_violations_the_nearest_is_selected() -> None:
    assert tier(MIDDLING, ALIKE, constraints={"max_ttft_ms": 10}) == "balanced"
    never: Predictions = {name: takes()._replace(ttft_ms=NEVER) for name in TIER_NAMES}
    assert tier(HARD, never, constraints={"max_ttft_ms": 10}) == "performance"


def test_limits_win_over_difficulty_and_goal_also_for_a_safety_critical_prompt() -> None:
    cheap = {"max_cost_usd": 0.001}
    assert tier(HARDEST, category="safety_critical", goal="better", constraints=cheap) == "eco"
    assert tier(EASY, goal="faster", constraints={"max_cost_usd": 0.003}) == "balanced"


def test_a_goal_chooses_among_those_that_keep_the_limits() -> None:
    assert tier(HARDEST, goal="cheaper", constraints={"max_ttft_ms": 900}) == "performance"
    assert tier(HARDEST, goal="faster", constraints={"max_ttft_ms": 300}) == "balanced"


def test_in_manual_mode_limits_are_checked_and_the_tier_stays() -> None:
    chosen = selected(EASY, mode="manual", power=95, constraints={"max_cost_usd": 0.001})
    assert (chosen.tier, chosen.power) == ("ultra", 95)
    assert [violation.limit for violation in chosen.broken] == ["max_cost_usd"]
    assert [candidate.tier for candidate in chosen.candidates] == ["ultra"]


# --- for anything ---

numbers = st.floats(0, 1e6)
predictions = st.fixed_dictionaries(
    {
        name: st.builds(takes, numbers, numbers, numbers, numbers)
        | st.builds(takes).map(lambda made: made._replace(ttft_ms=NEVER, total_ms=NEVER))
        for name in TIER_NAMES
    }
)
goals = st.none() | st.sampled_from(["faster", "cheaper", "greener", "better"])
limit_names = ("max_ttft_ms", "max_total_ms", "max_cost_usd", "max_energy_wh", "max_co2_g")
limits = st.dictionaries(st.sampled_from(limit_names), st.floats(1e-3, 1e6), min_size=1)
difficulties = st.integers(1, 10)
looser = st.floats(1, 1e3)


def breaks(name: TierName, made: Predictions, constraints: dict[str, float]) -> bool:
    return any(getattr(made[name], limit.removeprefix("max_")).upper > most for limit, most in constraints.items())


def satisfiable(made: Predictions, constraints: dict[str, float]) -> bool:
    return any(not breaks(name, made, constraints) for name in TIER_NAMES)


@given(difficulties, predictions, goals, limits)
def test_a_limit_is_kept_if_some_tier_keeps_it(
    difficulty: int, made: Predictions, goal: str | None, constraints: dict[str, float]
) -> None:
    chosen = selected(difficulty, made, goal=goal, constraints=constraints)
    assert bool(chosen.broken) == breaks(chosen.tier, made, constraints) == (not satisfiable(made, constraints))
    low, high = PROFILE.tiers[chosen.tier].power
    assert low <= chosen.power <= high


@given(difficulties, predictions, goals, limits, st.lists(looser, min_size=4, max_size=4))
def test_a_plan_that_keeps_tight_limits_keeps_all_looser_ones(
    difficulty: int, made: Predictions, goal: str | None, tight: dict[str, float], factors: list[float]
) -> None:
    loose = {name: most * factor for (name, most), factor in zip(tight.items(), factors, strict=False)}
    chosen = selected(difficulty, made, goal=goal, constraints=tight)
    if not chosen.broken:
        assert not breaks(chosen.tier, made, loose)


@given(difficulties, predictions, goals, st.sampled_from(limit_names), st.floats(1e-3, 1e6), looser)
def test_a_tighter_limit_never_gives_a_plan_that_breaks_a_looser_one_which_can_be_kept(
    difficulty: int, made: Predictions, goal: str | None, name: str, most: float, factor: float
) -> None:
    loose = {name: most * factor}
    chosen = selected(difficulty, made, goal=goal, constraints={name: most})
    assert breaks(chosen.tier, made, loose) == (not satisfiable(made, loose))


@given(difficulties, predictions, goals, limits, looser)
def test_the_same_holds_for_several_limits_that_are_loosened_alike(
    difficulty: int, made: Predictions, goal: str | None, tight: dict[str, float], factor: float
) -> None:
    loose = {name: most * factor * (1 + 1e-9) for name, most in tight.items()}
    chosen = selected(difficulty, made, goal=goal, constraints=tight)
    assert breaks(chosen.tier, made, loose) <= (not satisfiable(made, loose))


@given(st.tuples(difficulties, difficulties), predictions, goals, st.just({}) | limits, st.booleans())
def test_more_difficulty_never_lowers_the_tier(
    pair: tuple[int, int], made: Predictions, goal: str | None, constraints: dict[str, float], grave: bool
) -> None:
    category: Category = "safety_critical" if grave else "code"
    easier, harder = (
        selected(difficulty, made, category, goal=goal, constraints=constraints) for difficulty in sorted(pair)
    )
    assert rank(easier.tier) <= rank(harder.tier)


@given(difficulties, predictions, goals)
def test_no_goal_under_serves_a_safety_critical_prompt(difficulty: int, made: Predictions, goal: str | None) -> None:
    chosen = selected(difficulty, made, "safety_critical", goal=goal)
    assert rank(chosen.tier) >= rank(chosen.deserved)


# --- limits of a prediction ---


def test_only_the_limits_that_are_set_count() -> None:
    assert given_limits(None) == ()
    assert given_limits(Constraints()) == ()
    assert given_limits(Constraints(max_energy_wh=1, max_ttft_ms=5)) == (("max_ttft_ms", 5), ("max_energy_wh", 1))


def test_each_limit_is_compared_with_its_own_quantity() -> None:
    exactly = Constraints(max_ttft_ms=100, max_total_ms=1000, max_cost_usd=0.01, max_energy_wh=0.2)
    assert broken_limits(given_limits(exactly), takes()) == ()
    tight = Constraints(max_ttft_ms=50, max_total_ms=250, max_cost_usd=0.009, max_energy_wh=0.02)
    broken = broken_limits(given_limits(tight), takes())
    assert [(violation.limit, round(violation.ratio, 2)) for violation in broken] == [
        ("max_energy_wh", 10),
        ("max_total_ms", 4),
        ("max_ttft_ms", 2),
        ("max_cost_usd", 1.11),
    ]


def test_a_limit_between_the_expected_and_the_upper_value_is_broken() -> None:
    unsure = takes()._replace(ttft_ms=Estimate(100, 50))
    [violation] = broken_limits((("max_ttft_ms", 120),), unsure)
    assert violation.ratio == (100 + UPPER_Z * 50) / 120
    assert broken_limits((("max_ttft_ms", 165),), unsure) == ()


def test_a_tier_that_cannot_start_breaks_any_time_limit() -> None:
    [violation] = broken_limits((("max_total_ms", 1e12),), takes()._replace(total_ms=NEVER))
    assert violation.ratio == inf
