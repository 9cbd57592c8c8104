"""The two dials: power picks the tier, speed the length and the randomness of the answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from router.difficulty.categories import Category
from router.registry import Profile, TierName

DEFAULT_POWER = 50
DEFAULT_SPEED = 50

POWER_OF_DIFFICULTY: dict[int, int] = {
    1: 5,
    2: 12,
    3: 20,
    4: 34,
    5: 46,
    6: 58,
    7: 66,
    8: 76,
    9: 88,
    10: 100,
}
"""Power (0-100) for a difficulty (1-10). With the production ranges 1-3 is eco (0-25), 4-5 balanced (26-50), 6-8
performance (51-80) and 9-10 ultra (81-100). The values keep a distance from the ends of the ranges, so that a profile
may shift these by a few points. Our own choice."""

LONGEST_ANSWER_TOKENS = 2048
"""Most completion tokens at speed 0."""
SHORTEST_ANSWER_TOKENS = 128
"""Most completion tokens at speed 100."""

EXACT_CATEGORIES: frozenset[Category] = frozenset(("simple_question", "math", "code", "safety_critical"))
"""Prompts that have right and wrong answers. The most likely token is the best guess at each step, so they are answered
greedily unless the user wants samples. DeepSeek also recommends temperature 0 for code and mathematics
(api-docs.deepseek.com, parameter settings)."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the model samples its answer."""

    max_tokens: int
    temperature: float
    top_p: float


def power_for_difficulty(difficulty: int) -> int:
    """Return the power (0-100) for a difficulty (1-10); it never falls as the difficulty rises."""
    if difficulty not in POWER_OF_DIFFICULTY:
        raise ValueError(f"difficulty must be 1 to 10, got {difficulty}")
    return POWER_OF_DIFFICULTY[difficulty]


def tier_for_power(profile: Profile, power: int) -> TierName:
    """Return the tier whose power range (both ends included) has this power (0-100)."""
    for name, tier in profile.tiers.items():
        if tier.power[0] <= power <= tier.power[1]:
            return name
    raise ValueError(f"power must be 0 to 100, got {power}")


@cache
def sampling_for_speed(speed: int, *, greedy: bool = False) -> Sampling:
    """Return the sampling for a speed (0 = thorough, 100 = terse).

    max_tokens = 2048 * (128 / 2048) ** (speed / 100): equal steps of the dial are equal ratios of length, so 25 is
    1024, 50 is 512 and 75 is 256. Temperature falls from 0.7 to 0.3 and top_p from 0.95 to 0.85, both linearly: a terse
    answer has no room to recover from an unlikely word. With `greedy`, temperature is 0 at every speed.
    """
    if not 0 <= speed <= 100:
        raise ValueError(f"speed must be 0 to 100, got {speed}")
    share = speed / 100
    return Sampling(
        max_tokens=round(LONGEST_ANSWER_TOKENS * (SHORTEST_ANSWER_TOKENS / LONGEST_ANSWER_TOKENS) ** share),
        temperature=0.0 if greedy else round(0.7 - 0.4 * share, 3),
        top_p=round(0.95 - 0.10 * share, 3),
    )
