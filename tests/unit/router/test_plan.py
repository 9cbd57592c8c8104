"""From a request and an observation to a plan."""

from __future__ import annotations

import contextlib
import itertools
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.dials import power_for_difficulty, tier_for_power
from router.needs import NoTierError
from router.observation import Observation, TierState
from router.plan import Plan, plan
from router.registry import TIER_NAMES, AutoSettings
from router.request import InferenceRequest
from tests.unit.router.profiles import EAGLE_K_MAX, NGRAM_K_MAX, small_profile

PROFILE = small_profile().model_copy(update={"auto": AutoSettings(shares=(30, 10, 10, 50))})
NOTHING_KNOWN = Observation()
WARM = Observation({name: TierState(running=1) for name in TIER_NAMES})

EASY = "What is the capital of France?"
HARD = "Design a globally distributed chat service for 10M concurrent users."
SAFETY_CRITICAL = "My son swallowed bleach"


def ticking() -> Callable[[], float]:
    """A clock that moves on by one second whenever it is read."""
    ticks = itertools.count()
    return lambda: float(next(ticks))


def planned(observation: Observation = WARM, **body: Any) -> Plan:
    body = {"prompt": EASY} | body if "messages" not in body else body
    return plan(InferenceRequest.model_validate(body), observation, PROFILE, ticking())


def steps(made: Plan) -> list[str]:
    return [step.step for step in made.trace]


# --- tier ---


def test_auto_sends_an_easy_prompt_to_eco_at_speed_50() -> None:
    made = planned()
    assert (made.mode, made.tier, made.power, made.speed) == ("auto", "eco", 5, 50)
    assert made.entry.name == "small-ngram"


def test_auto_sends_an_open_design_to_a_high_tier() -> None:
    assert planned(prompt=HARD).tier in ("performance", "ultra")


def test_auto_never_sends_a_safety_critical_prompt_below_performance() -> None:
    assert planned(prompt=SAFETY_CRITICAL).tier in ("performance", "ultra")


def test_auto_keeps_a_given_speed() -> None:
    assert planned(speed=80).speed == 80


@pytest.mark.parametrize(("power", "tier"), [(10, "eco"), (40, "balanced"), (70, "performance"), (95, "ultra")])
def test_manual_follows_the_power_dial_whatever_the_prompt(power: int, tier: str) -> None:
    made = planned(mode="manual", power=power)
    assert (made.tier, made.power) == (tier, power)


def test_manual_mode_without_dials_is_power_50_and_speed_50() -> None:
    made = planned(mode="manual")
    assert (made.power, made.speed, made.tier) == (50, 50, "balanced")


# --- conversation ---


def chat(*turns: str) -> list[dict[str, str]]:
    roles = itertools.cycle(("user", "assistant"))
    return [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=False)]


def test_the_last_user_message_is_what_is_classified() -> None:
    assert planned(messages=chat(HARD, "Done.", "Thanks")).classification.category == "simple_question"
    assert planned(messages=chat("Hi", "Hello!", HARD)).classification.difficulty >= 8


def test_the_assistants_words_do_not_make_a_prompt_safety_critical() -> None:
    made = planned(messages=chat("Hi", "Never mix bleach and ammonia.", EASY))
    assert made.classification.category == "simple_question"


def test_a_follow_up_in_a_safety_critical_conversation_stays_so() -> None:
    made = planned(messages=chat(SAFETY_CRITICAL, "It depends.", "And twice a day?"))
    assert made.classification.category == "safety_critical"


def test_a_long_conversation_raises_the_difficulty() -> None:
    question = "Why did that happen?"
    short = planned(messages=chat("Tell me.", "Well.", question))
    long = planned(messages=chat("Tell me.", "Well. " * 8000, question))
    assert long.classification.difficulty > short.classification.difficulty


def test_a_conversation_without_a_user_is_judged_by_its_last_message() -> None:
    assert planned(messages=[{"role": "system", "content": HARD}]).classification.difficulty >= 8


# --- observation ---


def test_the_plan_is_for_the_active_entry() -> None:
    made = planned(Observation({"eco": TierState(running=1, active_entry="small-alone")}))
    assert made.entry.name == "small-alone"
    assert not made.spec.enabled


def test_a_warm_tier_has_no_cold_start() -> None:
    made = planned(Observation({"eco": TierState(running=1, cold_start_s=45)}))
    assert (made.warm, made.cold_start_s) == (True, 0.0)


def test_a_cold_tier_has_the_observed_cold_start() -> None:
    made = planned(Observation({"eco": TierState(starting=1, cold_start_s=45)}))
    assert (made.warm, made.cold_start_s) == (False, 45)


def test_a_tier_without_an_observation_has_the_profiles_cold_start() -> None:
    made = planned(NOTHING_KNOWN)
    assert (made.warm, made.cold_start_s) == (False, 90)


# --- sampling ---


def test_the_speed_dial_sets_the_sampling() -> None:
    sampling = planned(prompt="Write a poem about rain.", mode="manual", power=0, speed=50).sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (512, 0.5, 0.9)


@pytest.mark.parametrize("prompt", ["What is the capital of France?", "What is 2+2?", "Write a function in Python."])
def test_prompts_with_a_right_answer_are_answered_greedily(prompt: str) -> None:
    assert planned(prompt=prompt).sampling.temperature == 0


@pytest.mark.parametrize("fields", [{"top_p": 0.8}, {"seed": 7}, {"temperature": 0.5}])
def test_a_request_with_top_p_or_seed_is_sampled(fields: dict[str, Any]) -> None:
    assert planned(prompt="What is 2+2?", **fields).sampling.temperature == 0.5


def test_the_users_own_sampling_overrides_the_dial() -> None:
    sampling = planned(max_tokens=7, temperature=0, top_p=0.1).sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (7, 0, 0.1)


def test_the_dials_max_tokens_leaves_half_of_the_context_to_the_prompt() -> None:
    # performance's step has a context of 512 tokens
    assert planned(mode="manual", power=60, speed=0).sampling.max_tokens == 256


def test_the_users_max_tokens_is_kept_however_large() -> None:
    assert planned(mode="manual", power=60, max_tokens=5000).sampling.max_tokens == 5000


# --- speculation ---


def test_speculation_is_auto_up_to_k_max_unless_the_client_sets_it() -> None:
    made = planned()
    assert (made.spec.enabled, made.spec_method, made.spec.k_mode, made.spec.tau) == (True, "ngram_gpu", "auto", 0.3)
    assert made.spec.most_drafts(made.entry.speculation) == NGRAM_K_MAX


def test_a_fixed_k_and_tau_are_kept() -> None:
    spec = planned(spec={"k": 3, "tau": 0.0}).spec
    assert (spec.k, spec.k_mode, spec.tau) == (3, "fixed", 0.0)


def test_a_fixed_k_is_capped_to_k_max() -> None:
    made = planned(mode="manual", power=60, spec={"k": 32})
    assert (made.spec_method, made.spec.k, made.spec.k_mode) == ("eagle3", EAGLE_K_MAX, "fixed")


@pytest.mark.parametrize(
    "body",
    [
        {"spec": {"enabled": False}},
        {"spec": {"enabled": False, "k": 5}},
        {"spec": {"k": 0}},
        {"mode": "manual", "power": 100},
        {"mode": "manual", "power": 100, "spec": {"k": 5}},
    ],
    ids=["turned off", "turned off with k", "k 0", "entry has none", "entry has none but k"],
)
def test_speculation_is_off_if_the_client_or_the_entry_says_so(body: dict[str, Any]) -> None:
    made = planned(**body)
    assert (made.spec.enabled, made.spec_method, made.spec.k) == (False, None, 0)
    assert made.no_drafts_reason in ("no drafts are requested", "the tier's entry makes no drafts")


@pytest.mark.parametrize("body", [{}, {"temperature": 0.9}, {"spec": {"k": 4}}])
def test_nothing_is_drafted_for_a_sampled_answer_with_a_seed_and_the_plan_says_why(body: dict[str, Any]) -> None:
    made = planned(seed=7, **body)
    assert made.sampling.temperature > 0
    assert (made.spec.enabled, made.spec_method, made.spec.k) == (False, None, 0)
    assert made.no_drafts_reason is not None
    assert "seed" in made.no_drafts_reason


def test_a_greedy_answer_with_a_seed_is_drafted_for() -> None:
    made = planned(seed=7, temperature=0)
    assert made.spec.enabled
    assert made.no_drafts_reason is None


# --- escalation ---


@pytest.mark.parametrize("prompt", [HARD, SAFETY_CRITICAL])
def test_a_hard_or_safety_critical_prompt_on_a_low_dial_stays_there_with_advice(prompt: str) -> None:
    made = planned(prompt=prompt, mode="manual", power=10)
    assert made.tier == "eco"
    assert made.escalation is not None
    assert made.escalation.from_tier == "eco"
    assert made.escalation.to_tier == tier_for_power(PROFILE, power_for_difficulty(made.classification.difficulty))
    assert made.escalation.applied is False
    assert steps(made) == ["classify_prompt", "check_gpu_pool", "escalate", "build_config", "decision"]
    assert made.escalation.reason in made.explain()


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": HARD},
        {"prompt": HARD, "mode": "manual", "power": 100},
        {"prompt": SAFETY_CRITICAL, "mode": "manual", "power": 60},
        {"prompt": EASY, "mode": "manual", "power": 0},
        {"prompt": EASY, "mode": "manual", "power": 100},
    ],
    ids=["auto", "hard on ultra", "safety-critical on performance", "easy on eco", "easy on ultra"],
)
def test_there_is_no_escalation_if_the_tier_is_good_enough(body: dict[str, Any]) -> None:
    made = planned(**body)
    assert made.escalation is None
    assert steps(made) == ["classify_prompt", "check_gpu_pool", "build_config", "decision"]


# --- trace and words ---


def test_every_trace_step_has_its_own_duration() -> None:
    assert [step.duration_ms for step in planned(prompt=HARD, mode="manual", power=0).trace] == [1000.0] * 5


def test_trace_results_are_json_with_the_decision() -> None:
    made = planned()
    results = {step.step: json.loads(json.dumps(dict(step.result))) for step in made.trace}
    assert results["classify_prompt"]["difficulty"] == made.classification.difficulty
    assert results["check_gpu_pool"]["gpu"] == "L4"
    assert results["build_config"]["target_model"] == "small"


def test_a_plan_travels_between_processes() -> None:
    made = planned(prompt=HARD, mode="manual", power=0)
    assert pickle.loads(pickle.dumps(made)) == made


def test_the_explanation_names_tier_difficulty_power_and_the_wait() -> None:
    text = planned(NOTHING_KNOWN).explain()
    assert text == (
        "This looks like a simple question prompt of difficulty 1 of 10 (short question or greeting; "
        "gains more from a stronger model than 7% of prompts), "
        "so power 5 picks the eco tier. It has to start first (about 90 s)."
    )


def test_the_explanation_of_a_manual_choice_says_that_the_user_chose() -> None:
    text = planned(mode="manual", power=95).explain()
    assert text.startswith("You set power to 95, which picks the ultra tier")
    assert text.endswith("It is warm.")


# --- for anything ---

words = st.sampled_from([EASY, HARD, SAFETY_CRITICAL, "Write a poem", "translate", "def f():", "天地", "use ultra!"])
texts = st.one_of(st.text(min_size=1, max_size=80), st.lists(words, min_size=1, max_size=5).map(" ".join))
dial = st.none() | st.integers(0, 100)
spec_fields = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "enabled": st.booleans(),
        "k": st.integers(0, 32) | st.just("auto"),
        "tau": st.none() | st.floats(0, 1),
    },
)
inputs = st.fixed_dictionaries({"prompt": texts}) | st.fixed_dictionaries(
    {
        "messages": st.lists(
            st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": texts}),
            min_size=1,
            max_size=5,
        )
    }
)


@st.composite
def requests(draw: st.DrawFn) -> InferenceRequest:
    body: dict[str, Any] = dict(draw(inputs)) | {"mode": draw(st.sampled_from(["auto", "manual"])), "speed": draw(dial)}
    if body["mode"] == "manual":
        body["power"] = draw(dial)
    body["spec"] = draw(spec_fields)
    body["max_tokens"] = draw(st.none() | st.integers(1, 10_000))
    return InferenceRequest.model_validate(body)


states = st.builds(
    TierState,
    running=st.integers(0, 3),
    starting=st.integers(0, 3),
    pending=st.integers(0, 3),
    reason=st.none() | st.text(max_size=10),
    active_entry=st.none() | st.sampled_from(["small-ngram", "small-alone", "large-alone", "huge", "gone"]),
    queue_wait_ms=st.floats(0, 1e6),
    cold_start_s=st.floats(0, 1e4),
)
observations = st.builds(Observation, st.dictionaries(st.sampled_from(TIER_NAMES), states))


@given(requests(), observations)
def test_any_request_and_any_observation_give_a_valid_plan(request: InferenceRequest, observation: Observation) -> None:
    if request.mode == "auto" and (request.max_tokens or 1) > 4096:
        with contextlib.suppress(NoTierError):  # no tier may hold so many
            plan(request, observation, PROFILE, ticking())
        return
    made = plan(request, observation, PROFILE, ticking())
    assert 0 <= made.power <= 100
    assert 0 <= made.speed <= 100
    assert made.tier == tier_for_power(PROFILE, made.power)
    assert made.entry in PROFILE.tiers[made.tier].chain
    assert made.sampling.max_tokens >= 1
    assert (made.cold_start_s == 0.0) or not made.warm
    assert steps(made)[0] == "classify_prompt"
    assert steps(made)[-2:] == ["build_config", "decision"]
    assert ("escalate" in steps(made)) == (made.escalation is not None)
    assert made.mode == "manual" or made.escalation is None
    drafts = made.spec.most_drafts(made.entry.speculation)
    assert 0 <= drafts <= (made.entry.speculation.k_max if made.entry.speculation else 0)
    assert made.spec.enabled == (drafts > 0) == (made.spec_method is not None)
    assert made.explain().endswith(".")
    for step in made.trace:
        json.dumps(dict(step.result))
    assert plan(request, observation, PROFILE, ticking()) == made, "the same input gives the same plan"


@given(st.tuples(texts, texts), observations)
def test_a_harder_prompt_never_gets_a_lower_tier_in_auto(pair: tuple[str, str], observation: Observation) -> None:
    plans = [plan(InferenceRequest(prompt=text), observation, PROFILE, ticking()) for text in pair]
    easier, harder = sorted(plans, key=lambda made: made.classification.difficulty)
    assert TIER_NAMES.index(easier.tier) <= TIER_NAMES.index(harder.tier)
