"""Whether an answer that is under way goes on with another tier."""

from __future__ import annotations

from dataclasses import replace
from math import inf, isnan, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.escalation import (
    EASY,
    ENOUGH_RUNS,
    LASTS,
    LOOP,
    EscalationPolicy,
    Move,
    Progress,
    bounds,
    comparable,
    escalate_of,
)
from router.observation import Observation, TierState
from router.plan import plan
from router.registry import TIER_NAMES, Profile, TierName
from router.request import InferenceRequest
from router.runs.history import RunRecord
from router.runs.summary import Recent, RunSummary
from router.signs import HOPELESS, WINDOW, Signs
from tests.support.runs import run
from tests.unit.router.profiles import profile_data, small_profile
from tests.unit.router.strategies import observations

PROFILE = small_profile()
USUAL = RunSummary(
    runs=ENOUGH_RUNS,
    first_logprob=Recent(-1.0, 0.5, ENOUGH_RUNS),
    worst_logprob=Recent(-2.0, 0.5, ENOUGH_RUNS),
)
"""In doubt under -2.64 (at the beginning -1.64), unsure under -2.98 (-1.98)."""
FINE, DOUBTFUL, UNSURE = Signs(-0.6, -0.6, -0.6), Signs(-2.7, -0.6, -2.7), Signs(-3.5, -0.6, -3.5)


def seen(warm: tuple[TierName, ...] = TIER_NAMES, runs: RunSummary = USUAL, **over: Any) -> Observation:
    states = {name: TierState(running=int(name in warm), recent=runs) for name in TIER_NAMES}
    return Observation({name: replace(state, **over.get(name, {})) for name, state in states.items()})


def policy(
    observation: Observation, *, profile: Profile = PROFILE, advises: bool = False, **fields: Any
) -> EscalationPolicy:
    body: dict[str, Any] = {"prompt": "Tell me of the sea.", "mode": "manual", "power": 10} | fields
    request = InferenceRequest.model_validate(body)
    return EscalationPolicy(request, plan(request, observation, profile), profile, advises)


def at(tokens: int, signs: Signs, **over: Any) -> Progress:
    return Progress(tokens, elapsed_ms=100 + 20.0 * tokens, ttft_ms=100, busy_s=0.02 * tokens, signs=signs)._replace(
        **over
    )


def moves(judge: EscalationPolicy, observation: Observation, *course: tuple[int, Signs]) -> list[Move | None]:
    return [judge.judge(at(tokens, signs), observation) for tokens, signs in course]


def test_an_answer_that_stays_unsure_goes_on_with_the_next_stronger_tier() -> None:
    state = seen()
    first, second, third = moves(policy(state), state, (64, UNSURE), (72, UNSURE), (64 + LASTS, UNSURE))
    assert (first, second) == (None, None)
    assert third is not None
    assert (third.kind, third.to_tier) == ("climb", "balanced")
    assert third.reason == (
        "its last 16 tokens had a probability of 3.0% (geometric mean); one in ten of eco's answers comes below 7.1%"
    )


def test_one_that_is_as_sure_as_usual_stays() -> None:
    state = seen()
    assert moves(policy(state), state, *((tokens, FINE) for tokens in range(16, 400, 8))) == [None] * 48


def test_one_that_is_only_in_doubt_stays_but_does_not_count_as_well_again() -> None:
    state = seen()
    assert moves(policy(state), state, *((tokens, DOUBTFUL) for tokens in range(64, 400, 8))) == [None] * 42
    *_, last = moves(policy(state), state, (64, UNSURE), (72, DOUBTFUL), (80, DOUBTFUL))
    assert last is not None


def test_one_that_is_well_again_begins_anew() -> None:
    state = seen()
    course = [(64, UNSURE), (72, FINE), (80, UNSURE), (88, UNSURE), (96, UNSURE)]
    assert [move is not None for move in moves(policy(state), state, *course)] == [False, False, False, False, True]


def test_at_its_beginning_an_answer_is_judged_by_the_beginnings_of_others() -> None:
    state, signs = seen(), Signs(-2.2, -2.2, -2.2)  # unsure for a beginning, well for a later part
    first, second = moves(policy(state), state, (WINDOW, signs), (WINDOW + 8, signs))
    assert (first, second) == (None, None)
    assert moves(policy(state), state, (64, signs), (96, signs)) == [None, None]
    began = replace(USUAL, worst_logprob=Recent(-1.0, 0.1, ENOUGH_RUNS))
    assert bounds(policy(seen(runs=began)).plan, seen(runs=began)).unsure_first == pytest.approx(-1.98)


def test_with_few_past_answers_log_probabilities_say_nothing() -> None:
    few = replace(USUAL, worst_logprob=Recent(-2.0, 0.5, ENOUGH_RUNS - 1), first_logprob=None)
    state = seen(runs=few)
    usual = bounds(policy(state).plan, state)
    assert (usual.doubt_first, usual.doubt_worst, usual.unsure_worst) == (-inf, -inf, -inf)
    assert moves(policy(state), state, (64, UNSURE), (96, UNSURE)) == [None, None]


def test_at_a_high_temperature_log_probabilities_say_nothing() -> None:
    state = seen()
    assert moves(policy(state, temperature=1.5), state, (64, UNSURE), (72, UNSURE), (80, UNSURE)) == [None] * 3
    *_, move = moves(policy(state, temperature=1.0), state, (64, UNSURE), (72, UNSURE), (80, UNSURE))
    assert move is not None
    hot = comparable(UNSURE._replace(loop=5), policy(state, temperature=1.5).plan)
    assert hot.loop == 5
    assert isnan(hot.first)


def test_a_category_with_enough_past_answers_counts_before_the_whole_tier() -> None:
    wild = replace(USUAL, worst_logprob=Recent(-4.0, 0.5, ENOUGH_RUNS))
    state = seen()
    category = policy(state).plan.classification.category
    state = seen(eco={"recent_by_category": {category: wild}})
    assert moves(policy(state), state, (64, UNSURE), (96, UNSURE)) == [None, None]


def test_an_answer_that_repeats_itself_climbs_whatever_is_known() -> None:
    state = seen(runs=RunSummary())
    loop = Signs(-0.01, -0.5, -0.5, loop=2 * LOOP)
    *_, move = moves(policy(state), state, (120, loop), (120 + LASTS, loop))
    assert move is not None
    assert (move.kind, move.reason) == ("climb", "it has repeated itself for 128 tokens")


QUICK = {"cold_start_s": 1.0}
"""Of a cold tier: an answer of 256 tokens takes 5 s."""


def test_a_cold_tier_is_woken_at_the_first_doubt_once_and_never_waited_for() -> None:
    cold = seen(warm=("eco",), balanced=QUICK)
    judge = policy(cold)
    course = [(64, DOUBTFUL), (72, UNSURE), (80, UNSURE), (88, UNSURE), (96, UNSURE)]
    first, *others = moves(judge, cold, *course)
    assert first is not None
    assert (first.kind, first.to_tier) == ("wake", "balanced")
    assert others == [None] * 4
    warm = seen(warm=("eco", "balanced"))
    move = judge.judge(at(104, UNSURE), warm)
    assert move is not None
    assert (move.kind, move.to_tier) == ("climb", "balanced")


@pytest.mark.parametrize(
    ("fields", "states"),
    [
        ({}, {}),  # it would be warm after 90 s
        ({"constraints": {"max_cost_usd": 1e-6}}, {"balanced": QUICK}),
        ({}, {"balanced": QUICK | {"failed": True}}),
        ({"max_tokens": 90}, {"balanced": QUICK}),  # 26 tokens are left
    ],
    ids=["too slow", "over a limit", "failed", "nearly over"],
)
def test_a_cold_tier_that_could_not_help_is_not_woken(fields: dict[str, Any], states: dict[str, Any]) -> None:
    cold = seen(warm=("eco",), **states)
    assert moves(policy(cold, **fields), cold, (64, UNSURE), (72, UNSURE), (80, UNSURE)) == [None] * 3


def test_a_warm_tier_farther_up_is_taken_and_no_cold_one_woken() -> None:
    state = seen(warm=("eco", "ultra"), balanced=QUICK)
    first, second, move = moves(policy(state), state, (64, UNSURE), (72, UNSURE), (80, UNSURE))
    assert (first, second) == (None, None)
    assert move is not None
    assert (move.kind, move.to_tier) == ("climb", "ultra")


def test_a_tier_that_lets_requests_wait_takes_none_over() -> None:
    state = seen(balanced={"queue_wait_ms": 5000.0, "engine_waiting": 50})
    *_, move = moves(policy(state), state, (64, UNSURE), (72, UNSURE), (80, UNSURE))
    assert move is not None
    assert move.to_tier == "performance"


def test_where_a_tier_does_not_take_it_the_next_may() -> None:
    state = seen()
    judge = policy(state)
    judge.refused.add("balanced")
    *_, move = moves(judge, state, (64, UNSURE), (72, UNSURE), (80, UNSURE))
    assert move is not None
    assert move.to_tier == "performance"


def test_many_bad_answers_do_not_make_bad_ones_usual() -> None:
    record = RunRecord()
    for number in range(400):
        worst = -8.0 if number % 2 else -1.5
        record.add(run(signs=Signs(worst, worst, worst)), now_s=float(number))
    eco = record.summaries(400.0)["eco"]
    state = seen(eco={"recent": eco.all, "recent_by_category": {}})
    judge = policy(state)
    assert bounds(judge.plan, state).unsure_worst == HOPELESS
    *_, move = moves(judge, state, (64, Signs(-8.0, -8.0, -8.0)), (80, Signs(-8.0, -8.0, -8.0)))
    assert move is not None


def test_a_tier_must_have_room_for_prompt_text_and_rest() -> None:
    state = seen(warm=("eco", "performance"))  # 512 tokens
    course = [(200, UNSURE), (208, UNSURE), (216, UNSURE)]
    assert moves(policy(state, max_tokens=600), state, *course) == [None] * 3
    *_, move = moves(policy(state, max_tokens=300), state, *course)
    assert move is not None
    assert move.to_tier == "performance"


def test_an_answer_that_begins_anew_takes_a_whole_answers_time() -> None:
    runs = replace(USUAL, completion_tokens=Recent(200.0, 1.0, 1e6))
    state = seen(runs=runs)
    fields: dict[str, Any] = {"constraints": {"max_total_ms": 6_000}, "max_tokens": 220}
    course = [(128, UNSURE), (136, UNSURE), (144, UNSURE)]
    *_, goes_on = moves(policy(state, **fields), state, *course)
    assert goes_on is not None
    judge = policy(state, **fields)
    judge.rewrites = True
    assert moves(judge, state, *course) == [None] * 3


def test_an_answer_that_begins_badly_climbs_by_the_beginnings_of_others() -> None:
    state, signs = seen(), Signs(-2.2, -2.2, -2.2)
    _, _, move = moves(policy(state), state, (16, signs), (24, signs), (32, signs))
    assert move is not None
    assert move.kind == "climb"
    assert "one in ten of eco's answers begins below 19.4%" in move.reason


def test_advice_does_not_need_a_warm_tier_and_wakes_none() -> None:
    cold = seen(warm=("eco",))
    first, *_, move = moves(policy(cold, advises=True), cold, (64, UNSURE), (72, UNSURE), (80, UNSURE))
    assert first is None
    assert move is not None
    assert (move.kind, move.to_tier) == ("climb", "balanced")


def test_no_tier_goes_on_that_serves_the_same_model() -> None:
    data = profile_data()
    for step in data["tiers"]["balanced"]["chain"]:
        step["target"] = "small"
    profile, state = Profile.model_validate(data), seen()
    *_, move = moves(policy(state, profile=profile), state, (64, UNSURE), (72, UNSURE), (80, UNSURE))
    assert move is not None
    assert move.to_tier == "performance"


def test_none_goes_on_that_cannot_start_or_is_too_small() -> None:
    state = seen(balanced={"failed": True, "running": 0})
    # performance holds 512 tokens
    *_, move = moves(policy(state, prompt="word " * 600), state, (64, UNSURE), (72, UNSURE), (80, UNSURE))
    assert move is not None
    assert move.to_tier == "ultra"


def test_the_strongest_tier_stays() -> None:
    state = seen()
    assert moves(policy(state, power=95), state, (64, UNSURE), (72, UNSURE), (96, UNSURE)) == [None] * 3


def test_an_answer_that_is_nearly_over_stays() -> None:
    state = seen()
    assert moves(policy(state, max_tokens=100), state, (64, UNSURE), (72, UNSURE), (80, UNSURE)) == [None] * 3


@pytest.mark.parametrize(
    ("limits", "climbs"),
    [
        ({"max_total_ms": 60_000}, True),
        ({"max_total_ms": 4_000}, False),
        ({"max_cost_usd": 0.1}, True),
        ({"max_cost_usd": 0.001}, False),
        ({"max_energy_wh": 0.01}, False),
        ({"max_co2_g": 0.001}, False),
        ({"max_ttft_ms": 1}, True),  # its first token has come
    ],
)
def test_no_answer_climbs_over_a_limit(limits: dict[str, float], climbs: bool) -> None:
    state = seen()
    judge = policy(state, constraints=limits)
    *_, move = moves(judge, state, (64, UNSURE), (72, UNSURE), (80, UNSURE))
    assert (move is not None) is climbs


# --- descend ---

EASY_TEXT = Signs(EASY + 0.1, EASY, EASY)


def on_ultra(**fields: Any) -> tuple[EscalationPolicy, Observation]:
    # Its answers take 1 s to the first token and 10 tokens/s; the weaker tiers' 50 tokens/s.
    data = profile_data()
    data["tiers"]["ultra"] |= {"expected_ttft_ms": 1000, "expected_tokens_per_s": 10}
    state = seen(runs=RunSummary(completion_tokens=Recent(300.0, 10.0, 1e6)))
    given = {"power": 95, "max_tokens": 400} | fields
    return policy(state, profile=Profile.model_validate(data), **given), state


def slow(tokens: int, signs: Signs) -> Progress:
    return at(tokens, signs, elapsed_ms=1000 + 100.0 * tokens, ttft_ms=1000)


def test_an_easy_answer_that_is_about_to_break_a_limit_goes_on_with_a_weaker_tier() -> None:
    judge, state = on_ultra(constraints={"max_total_ms": 25_000})
    move = judge.judge(slow(100, EASY_TEXT), state)
    assert move is not None
    assert (move.kind, move.to_tier) == ("descend", "performance")
    assert move.reason == "it is about to break max_total_ms (about 31000, allowed 25000), and its text is easy"


@pytest.mark.parametrize(
    ("fields", "signs"),
    [
        ({}, EASY_TEXT),  # no limit
        ({"constraints": {"max_total_ms": 60_000}}, EASY_TEXT),  # it keeps it
        ({"constraints": {"max_total_ms": 25_000}}, FINE),  # the text is not easy
        ({"constraints": {"max_total_ms": 25_000}}, EASY_TEXT._replace(acceptance=0.1)),
        ({"constraints": {"max_total_ms": 25_000}}, EASY_TEXT._replace(logprob=nan)),
        ({"constraints": {"max_total_ms": 11_500}}, EASY_TEXT),  # nobody could keep it
        ({"constraints": {"max_total_ms": 25_000}, "prompt": "I want to kill myself."}, EASY_TEXT),
    ],
)
def test_any_other_stays(fields: dict[str, Any], signs: Signs) -> None:
    judge, state = on_ultra(**fields)
    assert judge.judge(slow(100, signs), state) is None


# --- what holds always ---


@given(observations, st.floats(-20, 0), st.integers(0, 4000), st.integers(16, 4000), st.booleans())
def test_every_move_is_to_another_tier_that_can_take_the_answer(
    state: Observation, logprob: float, loop: int, tokens: int, advises: bool
) -> None:
    judge = policy(state, advises=advises, power=40)
    signs = Signs(logprob, logprob, logprob, loop)
    for more in (0, 8, 16, 24):
        move = judge.judge(at(tokens + more, signs), state)
        if move is not None:
            assert TIER_NAMES.index(move.to_tier) > TIER_NAMES.index("balanced")
            assert not state.tier(move.to_tier).failed
            assert move.kind == "wake" or advises or state.tier(move.to_tier).warm
            assert move.reason


@pytest.mark.parametrize(
    ("fields", "of_tier", "expected"),
    [
        ({}, "advise", "advise"),
        ({}, "auto", "auto"),
        ({"mode": "manual", "power": 10}, "auto", "advise"),
        ({"mode": "manual", "power": 10, "escalate": "auto"}, "off", "auto"),
        ({"escalate": "off"}, "auto", "off"),
    ],
)
def test_the_request_says_what_happens_else_the_tier(fields: dict[str, Any], of_tier: Any, expected: str) -> None:
    request = InferenceRequest.model_validate({"prompt": "Hello"} | fields)
    tier = PROFILE.tiers["eco"].model_copy(update={"escalate": of_tier})
    assert escalate_of(request, tier) == expected
