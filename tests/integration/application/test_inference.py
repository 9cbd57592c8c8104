"""`/api/inference` with stub engines: what a real engine cannot show at will (`tests/e2e/test_inference.py`)."""

from __future__ import annotations

import concurrent.futures
import itertools
import re
from functools import partial

import pytest

from tests.support.api import Api, Json, events

HOT = {"mode": "manual", "power": 10}  # eco: the tier that is warm from the start


def test_the_answer_is_the_same_however_often_it_is_asked_for(api: Api) -> None:
    first, second = (api.infer(prompt="same words stub:tokens=40", **HOT) for _ in range(2))

    assert first.text == second.text
    assert first.all("token") == second.all("token")
    # Characters of two, three and four bytes survive; nothing is lost or doubled at the end.
    assert {" é", " 電", " ⚡"} <= {token["text"] for token in first.all("token")}


def test_the_response_is_an_unbuffered_event_stream(api: Api) -> None:
    with api.stream("/api/inference", {"prompt": "x stub:tokens=1", **HOT}) as response:
        response.read()
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-request-id"]


def test_the_dials_pick_the_tier_and_a_cold_tier_reports_its_start(api: Api) -> None:
    tiers = {40: "balanced", 70: "performance", 95: "ultra"}
    with concurrent.futures.ThreadPoolExecutor(len(tiers)) as pool:
        wake = partial(api.infer, prompt="hello stub:tokens=3", mode="manual")
        colds = pool.map(lambda power: wake(power=power), tiers)
    for tier, cold in zip(tiers.values(), colds, strict=True):
        config = cold.one("config")
        assert (config["tier"], config["warm"]) == (tier, False)
        assert config["cold_start_s"] > 0
        statuses = cold.all("status")
        assert statuses, "a cold tier must not be silent"
        assert {status["state"] for status in statuses} <= {"provisioning", "loading", "queued"}
        gaps = [b["waited_s"] - a["waited_s"] for a, b in itertools.pairwise(statuses)]
        assert max([statuses[0]["waited_s"], *gaps]) < 5
        assert len(cold.all("token")) == 3

    api.wait_for(lambda api: all(api.tier(tier)["replicas"]["running"] == 1 for tier in tiers.values()))
    for power in tiers:
        warm = api.infer(prompt="hello stub:tokens=3", mode="manual", power=power)
        assert warm.one("config")["warm"] is True
    states = {tier["name"]: tier for tier in api.get("/api/tiers").json()["tiers"]}
    assert [states[name]["replicas"]["running"] for name in ("eco", "balanced", "performance", "ultra")] == [1] * 4
    assert states["balanced"]["active_entry"] == "ngram"


def test_mock_requests_are_answered_by_the_stub_without_waking_a_tier(broken: Api) -> None:
    answer = broken.infer(prompt="a page", max_tokens=5, mode="manual", power=95, mock=True)

    assert answer.one("config")["engine"] == "stub"
    assert answer.one("config")["tier"] == "ultra"
    assert len(answer.all("token")) == 5
    assert broken.tier("ultra")["replicas"] | {"min": 0, "max": 0} == {
        "running": 0, "starting": 0, "pending": 0, "min": 0, "max": 0
    }  # fmt: skip


def test_no_prompt_steers_the_stub_of_a_mock_request(api: Api) -> None:
    answer = api.infer(prompt="x stub:die=0 stub:fail=0", max_tokens=5, mock=True)

    assert answer.kinds[-1] == "done"
    assert len(answer.all("token")) == 5


@pytest.mark.parametrize(
    ("body", "status", "code", "words"),
    [
        ({"prompt": "x", "powr": 3}, 422, "invalid_request", "powr: unknown key, allowed are prompt, messages"),
        ({"prompt": "x", "mode": "manual", "power": 101}, 422, "invalid_request", "power: .*100, got 101"),
        ({"prompt": "x", "power": 10}, 422, "invalid_request", "mode `manual`"),
        ({}, 422, "invalid_request", "exactly one of `prompt` and `messages`"),
        ({"prompt": "x", "messages": []}, 422, "invalid_request", "messages: .*at least 1"),
        ({"prompt": "x", "temperature": -1}, 422, "invalid_request", "temperature: .*greater than or equal to 0"),
        (
            {"prompt": "x", "spec": {"tau": 2}},
            422,
            "invalid_request",
            "spec.tau: must be a number 0-1 or 'auto', got 2",
        ),
        ("nonsense", 400, "not_json", "not JSON"),
        (b"\xff\xfe", 400, "not_json", "not JSON"),
        ({"prompt": "x", "max_tokens": 5000, **HOT}, 400, "prompt_too_long", "max_tokens 5000 .*max_model_len 2048"),
        ({"prompt": "word " * 3000, **HOT}, 400, "prompt_too_long", "max_model_len 2048"),
        ({"prompt": "word " * 20_000}, 400, "prompt_too_long", "max_model_len = 2048 in tier .*, which comes nearest"),
    ],
)
def test_bad_input_is_refused_with_a_clear_error(api: Api, body: Json, status: int, code: str, words: str) -> None:
    response = api.post("/api/inference", body)

    assert response.status_code == status
    error = response.json()["error"]
    assert error["code"] == code
    assert re.search(words, error["message"]), error["message"]
    assert error["retryable"] is False
    assert error["request_id"]


def test_unknown_paths_and_methods_get_json_errors_too(api: Api) -> None:
    missing, wrong = api.get("/nope"), api.get("/api/inference")

    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")


def test_stop_may_be_one_string(api: Api) -> None:
    assert api.infer(prompt="x stub:tokens=2", stop="END", **HOT).kinds[-1] == "done"


def test_bodies_and_prompts_over_the_limits_are_refused(tight: Api) -> None:
    large = tight.post("/api/inference", {"prompt": "x" * 3000})
    long = tight.post("/api/inference", {"prompt": "x" * 600})

    assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")
    assert "max_body_bytes = 2048" in large.json()["error"]["message"]
    assert (long.status_code, long.json()["error"]["code"]) == (400, "prompt_too_long")
    assert "max_prompt_chars = 500" in long.json()["error"]["message"]


def test_a_full_tier_answers_503_with_retry_after(tight: Api) -> None:
    # Each of the two ingress replicas has room for one that runs and one that waits; of eight, at least four find none.
    body = {"prompt": "x stub:rate=20 stub:tokens=40", **HOT}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        responses = list(pool.map(lambda _: tight.post("/api/inference", body), range(8)))

    refused = [response for response in responses if response.status_code == 503]
    assert len(refused) >= 4
    assert {response.headers["retry-after"] for response in refused} == {"5"}
    assert {response.json()["error"]["code"] for response in refused} == {"overloaded"}
    assert all(response.json()["error"]["retryable"] for response in refused)
    served = [response for response in responses if response.status_code == 200]
    assert served
    for response in served:
        assert list(events(iter([response.content])))[-1][0] in ("done", "error")


def test_a_request_over_its_time_ends_with_a_timeout_error(tight: Api) -> None:
    answer = tight.infer(prompt="x stub:first=30", **HOT)

    assert answer.kinds[-1] == "error"
    error = answer.one("error")
    assert (error["code"], error["retryable"]) == ("timeout", True)
    assert "4 s" in error["message"]
    tight.wait_for(lambda api: api.tier("eco")["requests"]["running"] == 0)


def test_an_engine_that_fails_mid_stream_ends_it_with_one_error_event(api: Api) -> None:
    answer = api.infer(prompt="x stub:fail=4", **HOT)

    assert answer.kinds[-1] == "error"
    assert answer.kinds.count("error") == 1
    assert not {"metrics", "done"} & set(answer.kinds)
    assert len(answer.all("token")) >= 4
    assert answer.one("error")["retryable"] is True


def test_a_stream_outlives_its_replica_without_a_token_twice_or_missing(api: Api) -> None:
    # The stub's answer depends on the prompt alone, and a stub that resumes does not die again.
    answer = api.infer(prompt="x stub:die=4", mode="manual", power=95, max_tokens=40)

    assert answer.kinds[-1] == "done"
    resumed = [status for status in answer.all("status") if status["state"] == "resumed"]
    assert len(resumed) == 1
    assert resumed[0]["reason"]
    again = api.infer(prompt="x stub:die=99", mode="manual", power=95, max_tokens=40)
    assert len(answer.all("token")) == len(again.all("token")) == 40
    metrics = answer.one("metrics")
    assert (metrics["completion_tokens"], metrics["finish_reason"]) == (40, "length")
    first, last = metrics["legs"]
    assert (first["completion_tokens"], first["ended_by"], last["completion_tokens"], last["ended_by"]) == (
        *(4, "replica_lost", 36, "done"),
    )
    assert metrics["busy_s"] == pytest.approx(first["busy_s"] + last["busy_s"], abs=1e-5)
    lost = 'power_lever_lost_replicas_total{code="replica_lost",tier="ultra"}'
    api.wait_for(lambda api: lost in api.get("/metrics").text)


def test_a_request_that_ends_its_replica_before_the_first_token_is_asked_again(api: Api) -> None:
    answer = api.infer(prompt="x stub:die=0 stub:until=/tmp/never", mode="manual", power=95, max_tokens=4)

    assert answer.kinds[-1] == "error"  # it ends each replica that takes it
    assert answer.one("error")["message"].endswith("for the third time")
    again = api.infer(prompt="x stub:tokens=4", mode="manual", power=95)
    assert len(again.all("token")) == 4


def test_sixty_four_streams_at_once_each_get_their_whole_answer(api: Api) -> None:
    def ask(number: int) -> tuple[str, int]:
        answer = api.infer(prompt=f"stream {number} stub:rate=0", max_tokens=300, **HOT)
        assert answer.kinds[-1] == "done"
        return answer.text, len(answer.all("token"))

    api.infer(prompt="x stub:tokens=1", **HOT)
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(ask, range(64)))

    assert [count for _, count in answers] == [300] * 64
    assert answers[7][0] == api.infer(prompt="stream 7 stub:rate=0", max_tokens=300, **HOT).text
