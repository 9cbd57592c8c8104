"""Plans with goals, limits and past runs: what the trace says, and what holds for anything."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.dials import tier_for_power
from router.needs import NOTHING_MORE, service
from router.observation import Observation, TierState
from router.plan import Plan, forecast, plan
from router.registry import TIER_NAMES, AutoSettings, TierName
from router.request import InferenceRequest
from router.runs.summary import Recent, RunSummary
from router.selection import broken_limits, given_limits
from tests.unit.router.profiles import small_profile
from tests.unit.router.strategies import goals, limits, observations

PROFILE = small_profile().model_copy(update={"auto": AutoSettings(shares=(30, 10, 10, 50))})
WARM = Observation({name: TierState(running=1) for name in TIER_NAMES})
EASY = "What is the capital of France?"
DESIGN = "Design a globally distributed chat service for 10M concurrent users."
SAFETY_CRITICAL = "My son swallowed bleach"
PROMPTS = [EASY, DESIGN, SAFETY_CRITICAL, "Write a poem about the sea.", "def f(): pass  # what is wrong here?"]


def planned(observation: Observation = WARM, **body: Any) -> Plan:
    clock = itertools.count()
    request = InferenceRequest.model_validate({"prompt": EASY} | body)
    return plan(request, observation, PROFILE, lambda: float(next(clock)))


def result(made: Plan, step: str) -> dict[str, Any]:
    [found] = [trace for trace in made.trace if trace.step == step]
    return json.loads(json.dumps(dict(found.result), allow_nan=False))  # type: ignore[no-any-return]


def steps(made: Plan) -> list[str]:
    return [trace.step for trace in made.trace]


def only_warm(name: str) -> Observation:
    return Observation({tier: TierState(running=int(tier == name), cold_start_s=90) for tier in TIER_NAMES})


# --- limits ---


def test_without_limits_or_goal_the_trace_has_neither_step() -> None:
    made = planned()
    assert steps(made) == ["classify_prompt", "check_gpu_pool", "build_config", "decision"]
    assert (made.prediction, made.broken, made.notes, made.goal) == (None, (), (), None)
    assert steps(planned(constraints={})) == steps(made)


def test_the_trace_has_kept_limits_with_the_prediction() -> None:
    made = planned(constraints={"max_ttft_ms": 500})
    assert steps(made) == ["classify_prompt", "constraints", "check_gpu_pool", "build_config", "decision"]
    step = result(made, "constraints")
    assert (step["limits"], step["tier"], step["kept"], step["gives_way"]) == (["max_ttft_ms 500"], "eco", True, None)
    assert step["ttft_ms"] == pytest.approx(100)
    assert step["reason"] == "the eco tier is predicted to keep your limit"
    assert made.prediction is not None
    assert made.prediction.ttft_ms.expected == pytest.approx(100)


def test_a_tight_ttft_limit_sends_a_prompt_to_a_warm_tier() -> None:
    made = planned(only_warm("performance"), constraints={"max_ttft_ms": 1000})
    assert (made.tier, made.power, made.warm) == ("performance", 51, True)
    step = result(made, "constraints")
    assert (step["wanted_tier"], step["kept"]) == ("eco", True)
    assert step["reason"] == (
        "the performance tier is predicted to keep your limit; "
        "eco breaks max_ttft_ms (90100 expected, up to 118900, allowed 1000)"
    )
    assert step["reason"][1:] in made.explain()


def test_if_no_tier_keeps_the_limits_the_trace_names_the_one_that_gives_way() -> None:
    made = planned(only_warm("eco"), prompt=DESIGN, constraints={"max_ttft_ms": 50, "max_cost_usd": 100})
    assert made.tier == "eco"
    step = result(made, "constraints")
    assert (step["kept"], step["gives_way"], step["allowed"]) == (False, "max_ttft_ms", 50)
    assert step["predicted"] == pytest.approx(100)
    assert step["predicted_upper"] == pytest.approx(164)
    assert step["broken"] == ["max_ttft_ms"]
    assert step["reason"].startswith("no tier is predicted to keep all your limits; the eco tier comes nearest")
    assert [violation.limit for violation in made.broken] == ["max_ttft_ms"]


def test_the_trace_of_a_tier_that_cannot_start_has_no_infinite_numbers() -> None:
    dead = Observation({name: TierState(failed=True) for name in TIER_NAMES})
    step = result(planned(dead, constraints={"max_total_ms": 1e9}), "constraints")
    assert (step["gives_way"], step["predicted"], step["predicted_upper"]) == ("max_total_ms", None, None)
    assert (step["ttft_ms"], step["total_ms"]) == (None, None)
    assert "it cannot start" in step["reason"]


def test_limits_that_lower_the_tier_of_a_safety_critical_prompt_come_with_advice() -> None:
    made = planned(only_warm("eco"), prompt=SAFETY_CRITICAL, constraints={"max_ttft_ms": 500})
    assert made.tier == "eco"
    assert made.escalation is not None
    assert (made.escalation.from_tier, made.escalation.to_tier) == ("eco", "performance")
    assert made.escalation.reason == "a safety-critical prompt deserves the performance tier, but your limits are kept"
    assert made.escalation.reason in made.explain()


def test_in_manual_mode_the_tier_stays_and_the_trace_says_what_it_breaks() -> None:
    made = planned(only_warm("eco"), mode="manual", power=95, constraints={"max_ttft_ms": 500})
    assert (made.tier, made.power) == ("ultra", 95)
    step = result(made, "constraints")
    assert (step["kept"], step["gives_way"], step["others"]) == (False, "max_ttft_ms", [])
    assert step["reason"].endswith("in manual mode your power setting is kept")


def test_the_length_that_the_user_allows_counts() -> None:
    assert planned(constraints={"max_total_ms": 1000}, max_tokens=10).broken == ()
    assert planned(constraints={"max_total_ms": 1000}, max_tokens=1000).broken != ()


def test_past_runs_decide_whether_a_limit_is_kept() -> None:
    slow = RunSummary(runs=50, engine_ttft_ms=Recent(3000.0, 100.0, 50))
    observation = Observation({**WARM.tiers, "eco": TierState(running=1, recent=slow)})
    assert planned(observation, constraints={"max_ttft_ms": 1000}).tier == "balanced"
    assert planned(constraints={"max_ttft_ms": 1000}).tier == "eco"


# --- goals ---


def test_the_trace_says_what_a_goal_did() -> None:
    made = planned(prompt=DESIGN, goal="cheaper")
    assert steps(made) == ["classify_prompt", "goal", "check_gpu_pool", "escalate", "build_config", "decision"]
    step = result(made, "goal")
    assert (step["goal"], step["deserved_tier"], step["tier"]) == ("cheaper", "ultra", "performance")
    assert (made.tier, made.goal) == ("performance", "cheaper")
    assert "You want it cheaper" in made.explain()


def test_cheaper_does_not_lower_the_tier_of_a_safety_critical_prompt() -> None:
    made = planned(prompt=SAFETY_CRITICAL, goal="cheaper")
    assert made.tier == "performance"
    assert result(made, "goal")["reason"] == "you want it cheaper, but this prompt needs the performance tier"
    assert made.escalation is None


def test_faster_goes_to_a_warm_tier_instead_of_waiting_for_a_start() -> None:
    made = planned(only_warm("balanced"), goal="faster")
    assert made.tier == "balanced"
    assert result(made, "goal")["tier"] == "balanced"
    assert made.prediction is not None


def test_the_trace_has_the_goal_before_the_limits() -> None:
    made = planned(goal="better", constraints={"max_ttft_ms": 500})
    assert steps(made)[1:3] == ["goal", "constraints"]


def test_a_goal_in_manual_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="`goal` shifts the tier in auto mode"):
        InferenceRequest.model_validate({"prompt": "x", "mode": "manual", "goal": "faster"})


# --- past drafts ---


def test_drafts_that_past_runs_call_waste_are_not_made_and_the_trace_says_why() -> None:
    waste = RunSummary(runs=50, draft_tokens=4000, accepted_tokens=20)
    eco = TierState(running=1, recent=waste, recent_by_category={"simple_question": waste})
    made = planned(Observation({"eco": eco}))
    assert (made.spec.enabled, made.spec.k) == (False, 0)
    step = result(made, "past_drafts")
    assert step["reason"] == "0.5% of the recent drafts for such prompts were accepted on this tier, so none are made"
    assert result(made, "build_config")["spec_k"] == 0
    for other in (planned(Observation({"eco": eco}), prompt="Hi", spec={"k": 4}), planned(prompt="Hi")):
        assert other.spec.enabled
        assert "past_drafts" not in steps(other)


# --- for anything ---


@st.composite
def requests(draw: st.DrawFn) -> InferenceRequest:
    body: dict[str, Any] = {"prompt": draw(st.sampled_from(PROMPTS)), "constraints": draw(limits)}
    if draw(st.booleans()):
        body |= {"mode": "manual", "power": draw(st.integers(0, 100))}
    else:
        body["goal"] = draw(goals)
    body["max_tokens"] = draw(st.none() | st.integers(1, 10_000))
    body["speed"] = draw(st.none() | st.integers(0, 100))
    return InferenceRequest.model_validate(body)


@given(requests(), observations)
def test_any_request_and_any_observation_give_a_plan_that_breaks_a_limit_only_if_every_tier_that_can_serve_does(
    request: InferenceRequest, observation: Observation
) -> None:
    made = plan(request, observation, PROFILE)
    assert made.tier == tier_for_power(PROFILE, made.power)
    assert made.entry in PROFILE.tiers[made.tier].chain
    most = made.entry.speculation.k_max if made.entry.speculation else 0
    assert 0 <= made.spec.most_drafts(made.entry.speculation) <= most
    assert made.explain().endswith(".")
    for trace in made.trace:
        json.dumps(dict(trace.result), allow_nan=False)
    given_by_user = given_limits(request.constraints)
    assert ("constraints" in steps(made)) == bool(given_by_user)
    assert ("goal" in steps(made)) == (request.goal is not None)
    assert (made.prediction is not None) == (bool(given_by_user) or request.goal == "faster")

    def broken(tier: TierName) -> bool:
        category = made.classification.category
        return bool(broken_limits(given_by_user, forecast(request, tier, category, observation, PROFILE)))

    assert bool(made.broken) == broken(made.tier)
    if request.mode == "auto":
        able = service(request, NOTHING_MORE, observation, PROFILE).able
        assert bool(made.broken) == all(broken(name) for name in able)
    again = plan(request, observation, PROFILE)
    assert (again.tier, again.power, again.broken, again.notes) == (made.tier, made.power, made.broken, made.notes)


@given(st.sampled_from([SAFETY_CRITICAL, f"{SAFETY_CRITICAL} {DESIGN}"]), goals, observations)
def test_no_goal_sends_a_safety_critical_prompt_below_its_tier(
    prompt: str, goal: str | None, observation: Observation
) -> None:
    made = planned(observation, prompt=prompt, goal=goal)
    plain = planned(observation, prompt=prompt)
    assert made.classification.category == "safety_critical"
    assert TIER_NAMES.index(made.tier) >= TIER_NAMES.index(plain.tier)
    assert made.escalation == plain.escalation, "only a lack of stronger tiers that can serve gives it a weaker one"
