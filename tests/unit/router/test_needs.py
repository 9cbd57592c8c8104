"""Which tiers can serve a request: its context, the tier's state, fields that no drafts go with."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.decision import Decision
from router.needs import NOTHING_MORE, Needs, NoTierError, Refusal, Service, Tried, prompt_tokens, service
from router.observation import Observation, TierState
from router.plan import Plan, plan
from router.registry import TIER_NAMES, Profile, TierName
from router.request import InferenceRequest
from tests.support.agent_cases import PROMPTS, SAFETY_CRITICAL
from tests.unit.router.profiles import profile_data

EASY = PROMPTS["eco"]


def with_contexts(eco: int, balanced: int, performance: int, ultra: int) -> Profile:
    """The small profile with one chain entry a tier, of these contexts."""
    data = profile_data()
    for name, context in zip(TIER_NAMES, (eco, balanced, performance, ultra), strict=True):
        data["tiers"][name]["chain"] = [data["tiers"][name]["chain"][0] | {"max_model_len": context}]
    return Profile.model_validate(data)


ALIKE = with_contexts(4096, 4096, 4096, 4096)
GROWING = with_contexts(1024, 2048, 4096, 8192)


def request(**body: Any) -> InferenceRequest:
    return InferenceRequest.model_validate(body if "messages" in body else {"prompt": EASY} | body)


def serving(profile: Profile, needs: Needs = NOTHING_MORE, failed: tuple[TierName, ...] = (), **body: Any) -> Service:
    return service(request(**body), needs, down(*failed), profile)


def planned(
    profile: Profile,
    *failed: TierName,
    needs: Needs = NOTHING_MORE,
    observation: Observation | None = None,
    **body: Any,
) -> Plan:
    return plan(request(**body), observation or down(*failed), profile, needs=needs)


def down(*failed: TierName) -> Observation:
    return Observation(
        {
            name: TierState(failed=True, reason="no node") if name in failed else TierState(running=1)
            for name in TIER_NAMES
        }
    )


def record(made: Plan) -> Decision:
    return Decision.model_validate(made.decision)


def step(made: Plan, name: str) -> dict[str, Any]:
    [result] = [step.result for step in made.trace if step.step == name]
    return dict(result)


# --- context ---


def test_a_long_prompt_goes_to_the_nearest_tier_that_holds_it_and_the_trace_says_why() -> None:
    made = planned(GROWING, prompt="capital of France? " * 200)
    assert made.tier == "performance"
    moved = step(made, "availability")
    assert (moved["wanted_tier"], moved["tier"], moved["obstacle"]) == (
        record(made).wanted_tier,
        "performance",
        "tight",
    )
    assert "together they may be at most max_model_len" in moved["reason"]
    assert "performance" in made.explain()


def test_the_whole_conversation_counts() -> None:
    long = [{"role": "user", "content": "word " * 2000}, {"role": "assistant", "content": "Yes."}]
    made = planned(GROWING, messages=[*long, {"role": "user", "content": EASY}])
    assert made.tier == "ultra"


@pytest.mark.parametrize(
    "needs", [Needs(other_text='{"name": "weather"}' * 150), Needs(token_ids=2000)], ids=["tools", "token ids"]
)
def test_what_the_model_reads_beside_the_messages_counts_too(needs: Needs) -> None:
    assert planned(GROWING, needs=needs).tier == "performance"


def test_the_users_own_max_tokens_count() -> None:
    assert [planned(GROWING, max_tokens=most).tier for most in (500, 1500, 3000, 6000)] == list(TIER_NAMES)


def test_the_dials_max_tokens_give_way_to_the_prompt() -> None:
    made = planned(GROWING, speed=0, prompt=EASY)
    assert (made.tier, made.sampling.max_tokens) == ("eco", 512)
    assert not serving(GROWING, speed=0, prompt="word " * 300).obstacles


def test_japanese_is_not_four_characters_a_token() -> None:
    text = "日本の首都はどこですか。" * 100  # 1,200 characters
    assert planned(GROWING, prompt=text).serving.prompt.most > 2000
    assert "eco" in serving(GROWING, prompt=text).obstacles


def test_the_active_entry_counts_and_the_first_while_none_runs() -> None:
    data = profile_data()
    data["tiers"]["eco"]["chain"][1]["max_model_len"] = 512
    profile = Profile.model_validate(data)
    fallen = Observation({"eco": TierState(running=1, active_entry="small-alone")})
    text = "word " * 300
    assert planned(profile, observation=Observation(), prompt=text).serving.obstacles.keys() == {"performance"}
    assert planned(profile, observation=fallen, prompt=text).serving.obstacles.keys() == {"eco", "performance"}


def test_a_prompt_that_may_fit_none_goes_to_the_roomiest_whose_engine_counts() -> None:
    assert serving(GROWING, prompt="word " * 5000).able == ("ultra",)
    assert serving(ALIKE, prompt="word " * 3000).able == TIER_NAMES


def test_a_prompt_that_fits_none_is_refused_with_the_tier_that_comes_nearest() -> None:
    with pytest.raises(NoTierError, match=r"max_model_len = 8192 in tier ultra, which comes nearest") as error:
        serving(GROWING, prompt="word " * 20_000)
    assert error.value.code == "prompt_too_long"


def test_after_an_engines_refusal_only_tiers_with_more_room_are_tried() -> None:
    refusal = Refusal(2048, "the prompt has 2100 tokens")
    assert serving(GROWING, Needs(tried=Tried(refusal=refusal))).able == ("performance", "ultra")
    with pytest.raises(NoTierError, match="the prompt has 2100 tokens in tier ultra"):
        serving(GROWING, Needs(tried=Tried(refusal=Refusal(8192, "the prompt has 2100 tokens"))))


def test_in_manual_mode_the_users_tier_stays() -> None:
    made = planned(GROWING, mode="manual", power=0, prompt="word " * 20_000)
    assert made.tier == "eco"
    assert record(made).verdict("eco").can_serve is False


# --- state ---


@pytest.mark.parametrize(
    ("failed", "tier"),
    [(("eco",), "balanced"), (("eco", "balanced"), "performance"), (("eco", "balanced", "performance"), "ultra")],
)
def test_a_cluster_without_a_tiers_gpu_answers_on_the_nearest_that_can_start(
    failed: tuple[TierName, ...], tier: TierName
) -> None:
    made = planned(ALIKE, *failed)
    assert made.tier == tier
    assert "no node" in step(made, "availability")["reason"]


@pytest.mark.parametrize("only", TIER_NAMES)
@pytest.mark.parametrize("prompt", [*PROMPTS.values(), SAFETY_CRITICAL])
def test_a_cluster_of_one_gpu_type_answers_everything(only: TierName, prompt: str) -> None:
    failed = tuple(name for name in TIER_NAMES if name != only)
    assert planned(ALIKE, *failed, prompt=prompt).tier == only


def test_a_safety_critical_prompt_goes_upwards_first() -> None:
    assert planned(ALIKE, prompt=SAFETY_CRITICAL).tier == "performance"
    assert planned(ALIKE, "performance", prompt=SAFETY_CRITICAL).tier == "ultra"
    lower = planned(ALIKE, "performance", "ultra", prompt=SAFETY_CRITICAL)
    assert lower.tier == "balanced"
    assert lower.escalation is not None
    assert "no tier as strong can serve it now" in lower.escalation.reason


def test_another_prompt_goes_to_the_nearest_of_two_the_stronger() -> None:
    assert planned(ALIKE, "balanced", prompt=PROMPTS["balanced"]).tier == "performance"


def test_if_every_tier_has_failed_the_wanted_one_says_why() -> None:
    assert planned(ALIKE, *TIER_NAMES).tier == "eco"
    assert planned(GROWING, *TIER_NAMES).tier == "eco"
    long = "word " * 1200
    assert planned(GROWING, *TIER_NAMES, prompt=long).tier == "performance"


def test_limits_choose_among_the_tiers_that_can_serve() -> None:
    assert planned(ALIKE, "eco", constraints={"max_ttft_ms": 1e6}).tier == "balanced"


# --- fields ---


def test_fields_that_no_drafts_go_with_need_a_tier_without_drafts() -> None:
    made = planned(ALIKE, needs=Needs(refused_with_drafts=("logit_bias",)))
    assert made.tier == "ultra"
    assert step(made, "availability")["obstacle"] == "drafts"


# --- for anything ---


@given(
    st.lists(st.integers(64, 5000), min_size=4, max_size=4),
    st.sets(st.sampled_from(TIER_NAMES)),
    st.integers(1, 3000),
    st.none() | st.integers(1, 3000),
)
def test_auto_takes_a_tier_that_can_serve_whenever_there_is_one(
    contexts: list[int], failed: set[TierName], words: int, max_tokens: int | None
) -> None:
    profile = with_contexts(*contexts)
    body: dict[str, Any] = {"prompt": "word " * words, "max_tokens": max_tokens}
    most = prompt_tokens(request(**body), NOTHING_MORE).most + (max_tokens or 256)
    good = [name for name, context in zip(TIER_NAMES, contexts, strict=True) if context >= most and name not in failed]
    if good:
        made = planned(profile, *failed, **body)
        assert made.tier in good
        assert record(made).verdict(made.tier).can_serve
