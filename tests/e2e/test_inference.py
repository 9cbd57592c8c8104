"""`/api/inference` on real engines: the events, the dials, cold and warm tiers, sampling, drafts."""

from __future__ import annotations

import itertools

import pytest

from bench.load.servers import Server
from tests.e2e.conftest import QUESTION, TIER_OF_POWER, ask
from tests.support.api import Answer, Api, Json

WARM = {"mode": "manual", "power": 10}  # eco: warm from the start, drafts with n-grams
LONGEST_SILENCE_S = 5.0


def test_an_answer_has_every_event_of_the_contract_in_order(api: Api) -> None:
    answer = api.infer(prompt=QUESTION, temperature=0, max_tokens=40)

    kinds = [kind for kind, _ in itertools.groupby(answer.kinds)]
    assert [kind for kind in kinds if kind != "status"] == [
        "config", "trace", "reasoning", "token", "metrics", "done"
    ]  # fmt: skip
    config, metrics = answer.one("config"), answer.one("metrics")
    assert (config["engine"], config["mode"], config["tier"], config["warm"]) == ("vllm", "auto", "eco", True)
    assert config["target_model"] == "smollm2-135m-instruct"
    assert (config["fallback_step"], config["spec_decoding"]["method"]) == ("ngram", "ngram")
    assert "Paris" in answer.text
    assert [step["step"] for step in answer.all("trace")] == [
        "classify_prompt",
        "check_gpu_pool",
        "build_config",
        "decision",
    ]
    assert answer.one("reasoning")["source"] == "heuristic"
    assert answer.one("done")["request_id"] == config["request_id"]
    assert 0 < metrics["ttft_ms"] <= metrics["total_ms"]
    assert metrics["energy"]["wh"] > 0
    assert metrics["completion_tokens"] == len(answer.all("token"))


@pytest.mark.parametrize("power", TIER_OF_POWER)
def test_every_tier_answers_the_first_time(first: dict[int, Answer], power: int) -> None:
    answer = first[power]

    config = answer.one("config")
    assert config["tier"] == TIER_OF_POWER[power]
    assert answer.kinds[-1] == "done"
    assert "Paris" in answer.text
    if config["tier"] == "eco":
        assert config["warm"] is True
        return
    assert config["warm"] is False
    assert config["cold_start_s"] > 0
    statuses = answer.all("status")
    assert {"provisioning", "loading"} >= {status["state"] for status in statuses} - {"queued"}
    assert "loading" in {status["state"] for status in statuses}
    waits = [0.0, *(status["waited_s"] for status in statuses)]
    assert max(later - earlier for earlier, later in itertools.pairwise(waits)) < LONGEST_SILENCE_S


@pytest.mark.parametrize("power", TIER_OF_POWER)
def test_every_tier_is_warm_the_second_time(first: dict[int, Answer], server: Server, api: Api, power: int) -> None:
    answer = ask(server, power)

    assert answer.one("config")["tier"] == TIER_OF_POWER[power]
    assert answer.one("config")["warm"] is True
    assert answer.one("config")["cold_start_s"] == 0
    assert answer.text == first[power].text
    tier = api.tier(TIER_OF_POWER[power])
    assert tier["replicas"]["running"] == 1
    assert tier["active_entry"] == answer.one("config")["fallback_step"]
    assert (tier["reason"] is None) is (power != 40)  # entries of balanced fail (test_fallback.py)


def test_drafts_change_the_speed_and_not_the_answer(first: dict[int, Answer]) -> None:
    drafting = {power for power, answer in first.items() if answer.one("config")["spec_decoding"]["enabled"]}

    assert drafting == {10, 70}
    assert len({answer.text for answer in first.values()}) == 1


COPY = 'Repeat this JSON exactly: {"name": "Ada", "year": 1815, "city": "London", "tags": ["math", "code", "math"]}'

CUT_AFTER_WHOLE_STEP = 21
"""Length at which the engine cuts nothing that it accepted (test_texts.py has the other lengths)."""


def test_drafts_are_accepted_when_text_is_copied(api: Api) -> None:
    spec_wish = {"k": 5, "tau": 0}
    answer = api.infer(prompt=COPY, temperature=0, max_tokens=CUT_AFTER_WHOLE_STEP, spec=spec_wish, **WARM)

    metrics, tokens = answer.one("metrics"), answer.all("token")
    spec = metrics["spec"]
    assert (metrics["finish_reason"], metrics["completion_tokens"]) == ("length", CUT_AFTER_WHOLE_STEP)
    assert spec["method"] == "ngram"
    assert spec["accepted_tokens"] > 0
    assert spec["draft_tokens"] >= spec["accepted_tokens"]
    assert spec["acceptance_rate"] == pytest.approx(spec["accepted_tokens"] / spec["draft_tokens"])
    assert spec["mean_acceptance_length"] == pytest.approx(1 + spec["accepted_tokens"] / spec["steps"])
    assert sum(token["spec_accepted"] for token in tokens) == spec["accepted_tokens"]


def test_a_tier_without_drafts_accepts_none(first: dict[int, Answer]) -> None:
    answer = first[95]

    assert not any(token["spec_accepted"] for token in answer.all("token"))
    spec = answer.one("metrics")["spec"]
    assert (spec["method"], spec["draft_tokens"], spec["acceptance_rate"]) == (None, 0, None)


def test_log_probabilities_come_only_when_asked_for(api: Api) -> None:
    body: Json = {"prompt": QUESTION, "temperature": 0, "max_tokens": 6, **WARM}
    without, with_them = api.infer(**body), api.infer(logprobs=True, **body)

    assert [token["logprob"] for token in without.all("token")] == [None] * 6
    assert all(-50 < token["logprob"] <= 0 for token in with_them.all("token"))
    assert with_them.text == without.text


def test_a_seed_repeats_a_sampled_answer(api: Api) -> None:
    body: Json = {"prompt": "Tell me something.", "temperature": 1.0, "top_p": 1.0, "max_tokens": 8, **WARM}
    once, again, other = (api.infer(seed=seed, **body) for seed in (7, 7, 8))

    assert once.text == again.text
    assert once.text != other.text
