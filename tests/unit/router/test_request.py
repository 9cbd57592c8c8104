"""What a client may send to `/api/inference`."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from router.request import InferenceRequest, Message


def refusal(body: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as error:
        InferenceRequest.model_validate(body)
    return str(error.value)


def test_a_prompt_alone_is_a_request_in_auto_mode() -> None:
    request = InferenceRequest.model_validate({"prompt": "Hi"})
    assert request.mode == "auto"
    assert (request.power, request.speed, request.spec, request.max_tokens) == (None, None, None, None)
    assert request.logprobs is False


def test_a_prompt_is_a_chat_of_one_user_message() -> None:
    assert InferenceRequest(prompt="Hi").chat() == (Message(role="user", content="Hi"),)


def test_messages_are_kept_in_order() -> None:
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    chat = InferenceRequest.model_validate({"messages": messages}).chat()
    assert [message.role for message in chat] == ["system", "user"]


@pytest.mark.parametrize("body", [{}, {"prompt": "Hi", "messages": [{"role": "user", "content": "Hi"}]}])
def test_exactly_one_of_prompt_and_messages_is_required(body: dict[str, Any]) -> None:
    assert "give exactly one of `prompt` and `messages`" in refusal(body)


def test_power_in_auto_mode_is_refused_with_the_way_out() -> None:
    assert "send mode `manual`" in refusal({"prompt": "Hi", "power": 50})


def test_speed_is_allowed_in_auto_mode() -> None:
    assert InferenceRequest.model_validate({"prompt": "Hi", "speed": 80}).speed == 80


@pytest.mark.parametrize("unknown", ["temprature", "model", "tier"])
def test_an_unknown_field_is_refused_by_name(unknown: str) -> None:
    message = refusal({"prompt": "Hi", unknown: 1})
    assert unknown in message
    assert "Extra inputs are not permitted" in message


def test_an_unknown_field_of_spec_is_refused_by_its_path() -> None:
    assert "spec.kk" in refusal({"prompt": "Hi", "spec": {"kk": 3}})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mode", "fast"),
        ("power", -1),
        ("power", 101),
        ("speed", 101),
        ("speed", 1.5),
        ("max_tokens", 0),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", float("nan")),
        ("top_p", 0),
        ("top_p", 1.1),
        ("seed", -1),
        ("seed", 2**63),
        ("stop", [""]),
        ("stop", ["x"] * 17),
        ("logprobs", 1),
        ("mock", "yes"),
        ("prompt", ""),
        ("messages", []),
        ("spec", {"k": -1}),
        ("spec", {"k": 33}),
        ("spec", {"k": "many"}),
        ("spec", {"tau": 1.5}),
        ("spec", {"enabled": 0}),
        ("constraints", {"max_ttft_ms": 0}),
        ("constraints", {"max_cost_usd": -1}),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_name(field: str, value: Any) -> None:
    body: dict[str, Any] = {"mode": "manual"} | ({} if field == "messages" else {"prompt": "Hi"}) | {field: value}
    assert f"\n{field}" in refusal(body)


@pytest.mark.parametrize("k", [0, 7, 32, "auto"])
def test_k_is_a_number_or_auto(k: Any) -> None:
    request = InferenceRequest.model_validate({"prompt": "Hi", "spec": {"k": k}})
    assert request.spec is not None
    assert request.spec.k == k


def test_a_request_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        InferenceRequest(prompt="Hi").power = 3


@pytest.mark.parametrize("wrong", [True, "5", [5]])
@pytest.mark.parametrize("field", ["power", "speed", "max_tokens", "temperature", "top_p", "seed", "max_ttft_ms"])
def test_a_number_is_one_of_jsons_numbers(field: str, wrong: object) -> None:
    given = {"constraints": {field: wrong}} if field.startswith("max_ttft") else {field: wrong}
    with pytest.raises(ValidationError, match=r"should be a valid (number|integer)"):
        InferenceRequest.model_validate({"prompt": "Hi", "mode": "manual"} | given)


def test_a_whole_number_is_a_limit_and_a_temperature_too() -> None:
    body = {"prompt": "Hi", "temperature": 1, "constraints": {"max_total_ms": 5000}}
    request = InferenceRequest.model_validate(body)
    assert (request.temperature, request.constraints and request.constraints.max_total_ms) == (1.0, 5000.0)


def test_off_is_a_word_in_a_request() -> None:
    assert "Input should be 'off', 'advise' or 'auto'" in refusal({"prompt": "Hi", "escalate": False})
