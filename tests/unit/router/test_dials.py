"""The power and speed dials."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.dials import power_for_difficulty, sampling_for_speed, tier_for_power
from router.registry import TIER_NAMES
from tests.unit.router.profiles import small_profile

PROFILE = small_profile()


@pytest.mark.parametrize(
    ("difficulties", "low", "high"),
    [((1, 2, 3), 0, 25), ((4, 5), 26, 50), ((6, 7, 8), 51, 80), ((9, 10), 81, 100)],
    ids=TIER_NAMES,
)
def test_difficulties_fall_in_the_power_range_of_their_tier(difficulties: tuple[int, ...], low: int, high: int) -> None:
    assert all(low <= power_for_difficulty(difficulty) <= high for difficulty in difficulties)


@given(st.integers(1, 9))
def test_more_difficulty_takes_more_power_and_never_a_lower_tier(difficulty: int) -> None:
    less, more = power_for_difficulty(difficulty), power_for_difficulty(difficulty + 1)
    assert less < more
    tiers = [TIER_NAMES.index(tier_for_power(PROFILE, power)) for power in (less, more)]
    assert tiers == sorted(tiers)


@pytest.mark.parametrize("difficulty", [0, 11, -3])
def test_a_difficulty_out_of_range_is_an_error(difficulty: int) -> None:
    with pytest.raises(ValueError, match=f"difficulty must be 1 to 10, got {difficulty}"):
        power_for_difficulty(difficulty)


@given(st.integers(0, 100))
def test_every_power_belongs_to_exactly_one_tier_and_picks_it(power: int) -> None:
    holding = [name for name, tier in PROFILE.tiers.items() if tier.power[0] <= power <= tier.power[1]]
    assert holding == [tier_for_power(PROFILE, power)]


@pytest.mark.parametrize(
    ("power", "tier"),
    [(0, "eco"), (25, "eco"), (26, "balanced"), (50, "balanced"), (51, "performance"), (80, "performance"),
     (81, "ultra"), (100, "ultra")],
)  # fmt: skip
def test_both_ends_of_a_range_belong_to_it(power: int, tier: str) -> None:
    assert tier_for_power(PROFILE, power) == tier


@pytest.mark.parametrize("power", [-1, 101])
def test_a_power_out_of_range_is_refused(power: int) -> None:
    with pytest.raises(ValueError, match=f"power must be 0 to 100, got {power}"):
        tier_for_power(PROFILE, power)


@pytest.mark.parametrize(("speed", "max_tokens"), [(0, 2048), (25, 1024), (50, 512), (75, 256), (100, 128)])
def test_a_quarter_turn_of_the_speed_dial_halves_the_longest_answer(speed: int, max_tokens: int) -> None:
    assert sampling_for_speed(speed).max_tokens == max_tokens


@pytest.mark.parametrize(("speed", "temperature", "top_p"), [(0, 0.7, 0.95), (50, 0.5, 0.9), (100, 0.3, 0.85)])
def test_a_terser_answer_is_sampled_more_narrowly(speed: int, temperature: float, top_p: float) -> None:
    sampling = sampling_for_speed(speed)
    assert (sampling.temperature, sampling.top_p) == (temperature, top_p)


@given(st.integers(0, 99))
def test_more_speed_never_makes_an_answer_longer_or_freer(speed: int) -> None:
    slower, faster = sampling_for_speed(speed), sampling_for_speed(speed + 1)
    assert faster.max_tokens <= slower.max_tokens
    assert faster.temperature <= slower.temperature
    assert faster.top_p <= slower.top_p


@given(st.integers(0, 100))
def test_a_greedy_answer_is_as_long_and_has_temperature_zero(speed: int) -> None:
    greedy, free = sampling_for_speed(speed, greedy=True), sampling_for_speed(speed)
    assert greedy.temperature == 0
    assert (greedy.max_tokens, greedy.top_p) == (free.max_tokens, free.top_p)


@pytest.mark.parametrize("speed", [-1, 101])
def test_a_speed_out_of_range_is_refused(speed: int) -> None:
    with pytest.raises(ValueError, match=f"speed must be 0 to 100, got {speed}"):
        sampling_for_speed(speed)
