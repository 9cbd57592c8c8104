"""The decision record: all tiers with what they would take, and why they were not taken."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from router.decision import Decision
from router.dials import power_for_difficulty, tier_for_power
from router.observation import Observation, TierState
from router.plan import forecast, plan
from router.registry import TIER_NAMES, Profile
from router.request import InferenceRequest
from tests.support.agent_cases import PROMPTS, SAFETY_CRITICAL
from tests.unit.router.profiles import profile_data, small_profile
from tests.unit.router.strategies import goals, limits, observations

PROFILE = small_profile()
WARM = Observation({name: TierState(running=1) for name in TIER_NAMES})
EASY = InferenceRequest(prompt="Hi")
SECRET = "Explain how photosynthesis relates to zanzibar."


def decided(observation: Observation = WARM, **body: Any) -> Decision:
    made = plan(InferenceRequest.model_validate({"prompt": SECRET} | body), observation, PROFILE)
    return Decision.model_validate(made.decision)


def why_not(made: Decision) -> list[str | None]:
    return [verdict.why_not for verdict in made.tiers]


def test_every_tier_has_the_prediction_that_the_limits_are_checked_with() -> None:
    request = InferenceRequest(prompt=SECRET)
    made = plan(request, WARM, PROFILE)
    for verdict in Decision.model_validate(made.decision).tiers:
        expected = forecast(request, verdict.tier, made.classification.category, WARM, PROFILE)
        assert verdict.total_ms.expected == pytest.approx(expected.total_ms.expected, abs=0.1)
        assert verdict.total_ms.high == pytest.approx(expected.total_ms.upper, abs=0.1)
        assert verdict.energy_wh.expected is not None
        assert verdict.co2_g.expected == pytest.approx(verdict.energy_wh.expected * 0.39, rel=1e-3)


def test_exactly_one_tier_is_taken_and_every_other_says_why_not() -> None:
    made = decided()
    assert [verdict.taken for verdict in made.tiers].count(True) == 1
    assert made.verdict(made.tier).taken
    assert [reason is None for reason in why_not(made)] == [verdict.taken for verdict in made.tiers]


@pytest.mark.parametrize(
    "ends", [(25, 50, 80, 100), (4, 5, 99, 100), (11, 19, 57, 100)], ids=["usual", "no prompt for eco", "narrow"]
)
def test_a_tier_is_good_enough_for_the_difficulties_that_the_record_names(ends: tuple[int, ...]) -> None:
    raw = profile_data()
    for low, high, tier in zip((0, *(end + 1 for end in ends)), ends, raw["tiers"].values(), strict=False):
        tier["power"] = [low, high]
    profile = Profile.model_validate(raw)
    words = {v.tier: v.good_for for v in Decision.model_validate(plan(EASY, WARM, profile).decision).tiers}
    for difficulty in range(1, 11):
        deserved = tier_for_power(profile, power_for_difficulty(difficulty))
        for place, name in enumerate(TIER_NAMES):
            most = 0 if words[name] == "no prompt" else int(words[name].removeprefix("difficulty up to "))
            assert (difficulty <= most) == (place >= TIER_NAMES.index(deserved))


@pytest.mark.parametrize(
    ("body", "tier", "reason"),
    [
        ({"prompt": PROMPTS["eco"]}, "ultra", "stronger than needed: eco is good enough"),
        ({"prompt": PROMPTS["ultra"]}, "eco", "weaker than the ultra tier"),
        ({"mode": "manual", "power": 60}, "eco", "the user's power setting picks another tier"),
        ({"prompt": PROMPTS["eco"], "goal": "faster"}, "ultra", "not predicted to be clearly faster than performance"),
        ({"prompt": PROMPTS["eco"], "max_tokens": 3800}, "performance", "max_model_len = 512"),
        ({"prompt": PROMPTS["eco"], "constraints": {"max_total_ms": 1}}, "ultra", "ultra breaks max_total_ms"),
    ],
)
def test_the_reason_is_what_kept_the_tier_from_being_taken(body: dict[str, Any], tier: Any, reason: str) -> None:
    verdict = decided(**body).verdict(tier)
    assert verdict.why_not is not None
    assert reason in verdict.why_not


def test_a_tier_that_cannot_start_takes_for_ever_and_says_why() -> None:
    made = decided(Observation({"ultra": TierState(failed=True, reason="no H100")}))
    verdict = made.verdict("ultra")
    assert (verdict.can_serve, verdict.ttft_ms.expected, verdict.why_not) == (False, None, "it cannot start: no H100")
    assert verdict.energy_wh.expected is not None


def test_stronger_tiers_are_good_enough_for_harder_prompts() -> None:
    made = decided(prompt=PROMPTS["balanced"])
    assert made.deserved_tier == "balanced"
    assert [verdict.good_enough for verdict in made.tiers] == [False, True, True, True]
    assert [verdict.good_for for verdict in made.tiers] == [f"difficulty up to {most}" for most in (3, 5, 8, 10)]


def test_no_text_of_the_prompt_is_in_it() -> None:
    assert "zanzibar" not in json.dumps(decided().model_dump())
    assert "ibuprofen" not in json.dumps(decided(prompt=SAFETY_CRITICAL).model_dump())


@given(observations, limits, goals)
def test_a_record_is_valid_json_that_reads_back(
    observation: Observation, allowed: dict[str, float], goal: str | None
) -> None:
    request = InferenceRequest.model_validate({"prompt": SECRET, "constraints": allowed, "goal": goal})
    data = plan(request, observation, PROFILE).decision
    made = Decision.model_validate(json.loads(json.dumps(data, allow_nan=False)))
    assert made.model_dump() == data
    for verdict in made.tiers:
        ranges = (verdict.ttft_ms, verdict.total_ms, verdict.cost_usd, verdict.energy_wh, verdict.co2_g)
        for value in ranges:
            bounds = [bound for bound in (value.low, value.expected, value.high) if bound is not None]
            assert bounds in ([], sorted(bounds))


def test_a_goal_that_takes_less_than_the_prompt_deserves_is_why_a_better_tier_was_not_taken() -> None:
    prompt = "Design a globally distributed rate limiter for 10M requests a second"
    made = plan(InferenceRequest(prompt=prompt, goal="greener"), WARM, PROFILE)
    record = Decision.model_validate(made.decision)
    assert record.deserved_tier != record.tier
    assert record.verdict(record.deserved_tier).why_not == f"the goal greener prefers {record.tier}"
