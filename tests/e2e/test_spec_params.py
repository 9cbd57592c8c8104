"""What a client may ask of speculation, on `/api/inference` and on the OpenAI routes of a real engine (eco, n-gram)."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.support.api import Answer, Api, Json

COPY = 'Repeat this JSON exactly: {"name": "Ada", "year": 1815, "city": "London", "tags": ["math", "code", "math"]}'
SUMS = "What is 12 + 7, 13 + 8, 14 + 9, 15 + 10, 16 + 11 and 17 + 12?"
"""Its answer repeats what was asked and then goes on in another way: drafts come, and fail."""
K_MAX = 5
COUNTS = ("draft_tokens", "accepted_tokens", "acceptance_rate")
CHAT: list[ChatCompletionMessageParam] = [{"role": "user", "content": COPY}]


def ask(api: Api, prompt: str, spec: Json | None) -> Answer:
    return api.infer(prompt=prompt, mode="manual", power=10, temperature=0, max_tokens=40, spec=spec)


def decode_steps(answer: Answer) -> int:
    """Each step ends with a token of the target's own, the last one too unless the end of the answer cut it off. The
    first step ends the prefill.
    """
    flags: list[bool] = [token["spec_accepted"] for token in answer.all("token")]
    return flags.count(False) + flags[-1] - 1


def step_depths(answer: Answer) -> list[int]:
    """Draft tokens that each step verified, by `spec_k` of the token that ends it."""
    tokens = answer.all("token")
    ends = [not token["spec_accepted"] for token in tokens[:-1]] + [True]
    return [token["spec_k"] for token, end in zip(tokens, ends, strict=True) if end]


@pytest.fixture(scope="module")
def plain(server: Any) -> str:
    """The answer without drafts."""
    with Api(f"http://127.0.0.1:{server.port}") as api:
        return ask(api, COPY, {"k": 0}).text


@pytest.mark.parametrize("k", [2, 32, "auto", None])
def test_a_depth_changes_the_drafts_and_not_the_answer(api: Api, plain: str, k: int | Literal["auto"] | None) -> None:
    answer = ask(api, COPY, {"k": k})

    decided, spec = answer.one("config")["spec_decoding"], answer.one("metrics")["spec"]
    assert answer.text == plain
    most = min(k, K_MAX) if isinstance(k, int) else K_MAX  # capped by what the engine can do
    assert (decided["enabled"], decided["method"], decided["K"]) == (True, "ngram", most)
    assert decided["drafts"] == {"requested": None, "used": "ngram", "reason": None}
    assert spec["drafts"] == {"ngram": {name: spec[name] for name in COUNTS}}
    assert decided["k_mode"] == ("fixed" if isinstance(k, int) else "auto")
    assert 0 < spec["accepted_tokens"] <= spec["draft_tokens"] <= most * spec["steps"]
    assert spec["acceptance_rate"] == spec["accepted_tokens"] / spec["draft_tokens"]
    assert sum(spec["steps_by_reason"].values()) == decode_steps(answer)
    assert sum(step_depths(answer)) == spec["draft_tokens"]
    reasons = {"asked"} if isinstance(k, int) else {"auto", "auto_off", "probe", "plain", "trial"}
    assert set(spec["steps_by_reason"]) <= reasons


@pytest.mark.parametrize("spec", [{"k": 0}, {"enabled": False, "k": K_MAX}])
def test_a_request_may_ask_for_no_drafts(api: Api, plain: str, spec: Json) -> None:
    answer = ask(api, COPY, spec)

    assert answer.text == plain
    assert not any(token["spec_accepted"] or token["spec_k"] for token in answer.all("token"))
    assert answer.one("metrics")["spec"] == {
        "method": None,
        "steps": 0,
        "draft_tokens": 0,
        "accepted_tokens": 0,
        "acceptance_rate": None,
        "mean_acceptance_length": None,
        "drafts": {},
        "tau": None,
        "steps_by_reason": {"asked": decode_steps(answer)},
        "stopped_by_tau": False,
        "why_stopped": None,
    }


def test_a_floor_of_acceptance_stops_drafts_that_fail(api: Api) -> None:
    free, floored = (ask(api, SUMS, {"k": K_MAX, "tau": tau}) for tau in (0, 0.9))

    assert floored.text == free.text
    without, with_floor = free.one("metrics")["spec"], floored.one("metrics")["spec"]
    assert (without["stopped_by_tau"], with_floor["stopped_by_tau"]) == (False, True)
    assert with_floor["steps_by_reason"]["tau_stopped"] > 0
    assert sum(with_floor["steps_by_reason"].values()) == decode_steps(floored)
    assert without["steps_by_reason"] == {"asked": decode_steps(free)}
    assert with_floor["draft_tokens"] < without["draft_tokens"]
    assert floored.one("config")["spec_decoding"]["tau"] == with_floor["tau"] == 0.9


def test_an_entry_that_drafts_in_one_way_says_so_to_a_request_that_wants_another(api: Api, plain: str) -> None:
    answer = ask(api, COPY, {"drafts": "own"})

    assert answer.text == plain
    assert answer.one("config")["spec_decoding"]["drafts"] == {
        "requested": "own",
        "used": "ngram",
        "reason": "the tier's entry has only ngram drafts",
    }
    assert answer.one("metrics")["spec"]["drafts"].keys() == {"ngram"}


WRONG: list[Json] = [{"k": 33}, {"k": -1}, {"k": "many"}, {"tau": 1.5}, {"drafts": "eagle"}, {"depth": 2}]


@pytest.mark.parametrize("spec", WRONG)
def test_wrong_params_are_refused(api: Api, spec: Json) -> None:
    response = api.post("/api/inference", {"prompt": COPY, "spec": spec})

    assert response.status_code == 422
    assert f"spec.{next(iter(spec))}" in response.text


@pytest.mark.parametrize("spec", WRONG)
def test_wrong_params_are_refused_on_the_openai_routes_too(client: openai.OpenAI, spec: Json) -> None:
    with pytest.raises(openai.BadRequestError, match=rf"spec\.{next(iter(spec))}"):
        client.chat.completions.create(model="eco", messages=CHAT, max_tokens=4, extra_body={"spec": spec})


@pytest.mark.parametrize("k", [0, K_MAX, "auto"])
def test_a_chat_of_the_sdk_is_the_same_at_every_depth(
    client: openai.OpenAI, plain: str, k: int | Literal["auto"]
) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="eco", messages=CHAT, temperature=0, max_tokens=40, extra_body={"spec": {"k": k, "tau": 0}}
    )
    answer = raw.parse()

    assert json.loads(raw.headers["x-power-lever-spec"])["K"] == (k if isinstance(k, int) else K_MAX)
    assert answer.choices[0].message.content == plain
    assert answer.model_extra is not None
    record = answer.model_extra["metrics"]["speculative_decoding"]  # vLLM's own
    most = k if isinstance(k, int) else K_MAX
    assert max(record["per_step_drafted"] or [0]) <= most
    assert bool(record["num_draft_tokens"]) is (k != 0)
    ours = record["drafts"].get("ngram", {"draft_tokens": 0, "accepted_tokens": 0})
    assert (ours["draft_tokens"], ours["accepted_tokens"]) == (
        record["num_draft_tokens"],
        record["num_accepted_draft_tokens"],
    )


def test_a_chat_streams_with_params(client: openai.OpenAI, plain: str) -> None:
    chunks = client.chat.completions.create(
        model="eco", messages=CHAT, temperature=0, max_tokens=40, stream=True, extra_body={"spec": {"k": K_MAX}}
    )

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == plain


def test_a_completion_of_the_sdk_is_the_same_at_every_depth(client: openai.OpenAI) -> None:
    answers = [
        client.completions.create(
            model="eco", prompt="1, 2, 3, 1, 2, 3, 1, 2,", temperature=0, max_tokens=24, extra_body={"spec": {"k": k}}
        )
        for k in (0, K_MAX)
    ]

    assert answers[0].choices[0].text == answers[1].choices[0].text
