"""Fallback steps that fail for real reasons: missing weights, too little memory, arguments that vLLM does not know, a
template that no chat passes."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from bench.load.client import HOST
from bench.load.servers import Server
from tests.support.api import Answer, Api, Json
from tests.support.e2e_app import LOST_MODEL, WORKING_ENTRY

MISSING_WEIGHTS = rf"weights of {LOST_MODEL} are not in /.*: run `power-lever weights seed"
# vLLM's own words, from its child process: what one request may need, and what there is.
SCARCE_MEMORY = r"ValueError: .*2048.*\d+\.\d+ GiB.*\d+\.\d+ GiB"
BAD_TEMPLATE = r"no message is good enough"
BAD_ARGUMENT = r"engine_args: .*no_such_argument"
BAD_QUANTIZATION = r"no-such-method"


@dataclass(frozen=True)
class Waking:
    """What the two broken tiers did with their first request, sent at the same time."""

    balanced: Answer
    performance: Answer
    performance_s: float
    """From the request on performance to the end of its stream, s."""


@pytest.fixture(scope="module")
def waking(server: Server) -> Waking:
    def ask(power: int) -> tuple[Answer, float]:
        with Api(f"http://{HOST}:{server.port}/broken") as api:
            began = time.monotonic()
            answer = api.infer(
                prompt="What is the capital of France?", mode="manual", power=power, temperature=0, max_tokens=12
            )
            return answer, time.monotonic() - began

    with ThreadPoolExecutor(2) as pool:
        (balanced, _), (performance, performance_s) = pool.map(ask, (40, 70))
    return Waking(balanced, performance, performance_s)


def failures(tier: Json) -> dict[str, str | None]:
    return {step["name"]: step["failure"] for step in tier["chain"]}


def test_a_tier_serves_the_first_step_that_works(waking: Waking, broken: Api) -> None:
    assert waking.balanced.kinds[-1] == "done"
    assert "Paris" in waking.balanced.text

    # The view that a plan is made from follows Serve's within a second or two, more on a busy machine.
    broken.wait_for(lambda api: api.tier("balanced")["active_entry"] is not None, timeout_s=30)
    again = broken.infer(prompt="What is the capital of France?", mode="manual", power=40, temperature=0, max_tokens=12)
    assert again.one("config")["fallback_step"] == WORKING_ENTRY
    assert again.one("config")["warm"] is True
    assert again.text == waking.balanced.text


def test_the_pool_tells_the_real_reason_of_every_step_that_was_left(waking: Waking, broken: Api) -> None:
    tier = broken.tier("balanced")

    assert tier["active_entry"] == WORKING_ENTRY
    assert tier["failed"] is False
    left = failures(tier)
    assert list(left) == ["no-weights", "scarce-kv", "bad-template", WORKING_ENTRY]
    assert re.search(MISSING_WEIGHTS, left["no-weights"] or "")
    assert re.search(SCARCE_MEMORY, left["scarce-kv"] or "")
    assert re.search(BAD_TEMPLATE, left["bad-template"] or "")
    assert left[WORKING_ENTRY] is None
    assert re.search(MISSING_WEIGHTS, tier["reason"])
    assert re.search(SCARCE_MEMORY, tier["reason"])


def test_a_tier_with_no_working_step_ends_its_stream_with_every_reason(waking: Waking, broken: Api) -> None:
    answer = waking.performance

    assert answer.kinds[-1] == "error"
    assert not {"token", "metrics", "done"} & set(answer.kinds)
    error = answer.one("error")
    assert (error["code"], error["retryable"]) == ("tier_unavailable", True)
    for reason in (MISSING_WEIGHTS, BAD_ARGUMENT, BAD_QUANTIZATION):
        assert re.search(reason, error["message"]), error["message"]
    assert waking.performance_s < 180

    tier = broken.tier("performance")
    assert tier["failed"] is True
    assert tier["active_entry"] is None
    left = failures(tier)
    assert re.search(MISSING_WEIGHTS, left["no-weights"] or "")
    assert re.search(BAD_ARGUMENT, left["bad-argument"] or "")
    assert re.search(BAD_QUANTIZATION, left["bad-quantization"] or "")


def test_a_tier_with_no_working_step_does_not_keep_the_next_client_waiting(waking: Waking, broken: Api) -> None:
    began = time.monotonic()
    answer = broken.infer(prompt="again", mode="manual", power=70)
    response = broken.post(
        "/v1/chat/completions", {"model": "performance", "messages": [{"role": "user", "content": "x"}]}
    )

    assert answer.one("error")["code"] == "tier_unavailable"
    assert response.status_code == 503
    assert re.search(BAD_ARGUMENT, response.json()["error"]["message"])
    assert time.monotonic() - began < 10


def test_the_other_application_is_not_disturbed(waking: Waking, api: Api) -> None:
    answer = api.infer(prompt="What is the capital of France?", mode="manual", power=10, temperature=0, max_tokens=8)

    assert "Paris" in answer.text
