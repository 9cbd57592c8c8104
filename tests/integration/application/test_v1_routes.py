"""The `/v1` routes through Serve, on stub engines. What needs no Serve is in tests/unit/serve_app/api/v1."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.support.api import Api, Json


@pytest.fixture
def client(api: Api) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{api.base_url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def test_the_models_are_auto_and_the_tiers(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["auto", "eco", "balanced", "performance", "ultra"]


def test_an_unknown_model_is_a_404_that_names_the_allowed_ones(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="allowed are auto, eco, balanced, performance, ultra"):
        client.chat.completions.create(model="gpt-4", messages=[{"role": "user", "content": "x"}])


def test_bad_bodies_are_refused(api: Api) -> None:
    for body in ("nonsense", "[]"):
        response = api.post("/v1/chat/completions", body)
        assert response.status_code == 400
        assert response.json()["error"]["type"] == "invalid_request_error"


def test_a_stream_to_a_cold_tier_pings_until_it_answers(broken: Api) -> None:
    body = {"model": "ultra", "messages": [{"role": "user", "content": "stub:tokens=2"}], "stream": True}
    with broken.stream("/v1/chat/completions", body) as response:
        raw = response.read()

    assert response.status_code == 200
    assert raw.startswith(b": ping\n\n")
    assert raw.count(b"[DONE]") == 1
    assert raw.endswith(b"data: [DONE]\n\n")


def test_stream_must_be_a_boolean(api: Api) -> None:
    for value in ("false", "0", "no", "off", 1, 0):
        body = {"model": "eco", "messages": [{"role": "user", "content": "stub:tokens=2"}], "stream": value}
        response = api.post("/v1/chat/completions", body)
        assert response.status_code == 400
        assert response.json()["error"]["message"].startswith("stream: Input should be a valid boolean, got ")


def test_model_null_is_auto(api: Api) -> None:
    response = api.post("/v1/chat/completions", {"model": None, "messages": [{"role": "user", "content": "Hi"}]})

    assert response.status_code == 200
    assert response.headers["x-power-lever-tier"] == "eco"


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/completions", {"prompt": ["x"] * 1024, "n": 16384}, "max_sequences = 64"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "n": 65}, "max_sequences = 64"),
        ("/v1/completions", {"prompt": "x", "priority": -1}, "priority: Input should be 'normal' or 'batch', got -1"),
        ("/v1/completions", {"prompt": "x", "kv_transfer_params": {}}, "kv_transfer_params: unknown key"),
        ("/v1/completions", {"prompt": "x", "repetition_detection": {}}, "repetition_detection: unknown key"),
        ("/v1/completions", {"prompt": "x", "vllm_xargs": {"speculation_other": 1}}, "vllm_xargs: "),
        ("/v1/completions", {"prompt": "x", "max_token": 1}, "max_token: unknown key"),
        ("/v1/completions", {"prompt": "x" * 200_001}, "max_prompt_chars = 200000"),
        ("/v1/completions", {"prompt": [5] * 200_001}, "max_prompt_chars = 200000"),
    ],
)
@pytest.mark.parametrize("model", ["auto", "eco"])
def test_fields_that_may_harm_others_are_refused_by_name(
    api: Api, path: str, body: Json, words: str, model: str
) -> None:
    response = api.post(path, {"model": model, **body})

    assert response.status_code == 400
    assert words in response.json()["error"]["message"]


def test_the_longest_prompt_counts_the_whole_conversation(tight: Api) -> None:
    turns = [{"role": "user", "content": "x" * 100}, {"role": "assistant", "content": "y" * 100}] * 3
    for model in ("auto", "eco"):
        response = tight.post("/v1/chat/completions", {"model": model, "messages": turns})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "prompt_too_long")


LETTER = "Write a poem about a fog horn. stub:tokens=20"
"""Creative writing, which no other test asks of this application."""


def test_the_answer_of_every_route_says_who_decided_and_counts_as_a_run(api: Api) -> None:
    turns = [{"role": "user", "content": LETTER}]
    for path, body in {
        "/v1/chat/completions": {"messages": turns, "stream": True},
        "/v1/completions": {"prompt": LETTER, "max_tokens": 64},
        "/v1/responses": {"input": turns, "stream": True},
        "/v1/messages": {"messages": turns, "max_tokens": 64},
    }.items():
        response = api.post(path, {"model": "auto", "mode": "manual", "power": 5, **body})
        assert response.status_code == 200, response.text
        decision = api.get(f"/api/decisions/{response.headers['x-power-lever-decision']}").json()
        assert decision["tier"] == response.headers["x-power-lever-tier"] == "eco"

        # A chat's stream has a usage only if the client asks for it.
        assert ('"power_lever":{"tier":"eco"' in response.text) == (path != "/v1/chat/completions")

    def runs(api: Api) -> Json:
        found: Json = api.tier("eco")["recent"]["categories"].get("creative", {"runs": 0.0})
        return found

    api.wait_for(lambda api: runs(api)["runs"] > 3.5)
    assert runs(api)["completion_tokens"]["mean"] == pytest.approx(20)
    assert runs(api)["finish_reasons"] == {"stop": 1.0}
