"""Request bodies: limits, and errors that name the key, what it got and what is allowed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message

from serve_app.api.body import parse_inference, read_json
from serve_app.api.errors import ApiError
from serve_app.config import AppConfig, Limits
from tests.support.app_config import app_config

JSON = [(b"content-type", b"application/json")]
LIMITS = Limits(max_body_bytes=1024, max_prompt_chars=20)


def request(*chunks: bytes) -> Request:
    left = list(chunks)

    async def receive() -> Message:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    return Request({"type": "http", "method": "POST", "headers": JSON}, receive)


CONFIG = app_config(limits=LIMITS.model_dump())


def refusal(body: Any, config: AppConfig = CONFIG) -> ApiError:
    with pytest.raises(ApiError) as error:
        parse_inference(body, config)
    return error.value


async def test_a_body_in_chunks_is_read_whole() -> None:
    assert await read_json(request(b'{"prompt"', b': "\xe9\x9b\xbb"}'), LIMITS) == {"prompt": "電"}


async def test_a_body_of_exactly_the_limit_is_read_and_one_byte_more_is_a_413() -> None:
    whole = b'"' + b"x" * 1022 + b'"'
    assert await read_json(request(whole[:600], whole[600:]), LIMITS) == "x" * 1022
    with pytest.raises(ApiError, match=r"more bytes than limits\.max_body_bytes = 1024") as error:
        await read_json(request(whole, b" "), LIMITS)
    assert (error.value.status, error.value.code, error.value.retryable) == (413, "body_too_large", False)


async def test_a_body_that_stops_arriving_is_a_408_after_30_s() -> None:
    loop = asyncio.get_running_loop()
    chunks = [b'{"prompt": ', b'"half of it']

    async def receive() -> Message:
        await asyncio.sleep(10)
        if not chunks:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": chunks.pop(0), "more_body": True}

    began_s = loop.time()
    with pytest.raises(ApiError, match="did not arrive within 30 s") as error:
        await read_json(Request({"type": "http", "method": "POST", "headers": JSON}, receive), LIMITS)
    assert (error.value.status, error.value.code) == (408, "body_timeout")
    assert loop.time() - began_s == pytest.approx(30)


async def test_reading_stops_at_the_limit() -> None:
    chunks = [b"x" * 1000] * 5
    seen = 0

    async def receive() -> Message:
        nonlocal seen
        seen += 1
        return {"type": "http.request", "body": chunks.pop(), "more_body": True}

    with pytest.raises(ApiError, match="body"):
        await read_json(Request({"type": "http", "method": "POST", "headers": JSON}, receive), LIMITS)
    assert seen == 2


@pytest.mark.parametrize("raw", [b"", b"{", b"prompt=hello", b"\xff"])
async def test_a_body_that_is_not_json_is_a_400(raw: bytes) -> None:
    with pytest.raises(ApiError, match="the body is not JSON") as error:
        await read_json(request(raw), LIMITS)
    assert (error.value.status, error.value.code) == (400, "not_json")


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ({"prompt": "a", "powr": 10}, ["powr: unknown key, allowed are", "power"]),
        ({"prompt": "a", "mode": "manual", "power": 101}, ["power", "less than or equal to 100", "got 101"]),
        ({"prompt": "a", "speed": -1}, ["speed", "greater than or equal to 0", "got -1"]),
        ({"prompt": "a", "mode": "turbo"}, ["mode", "'auto' or 'manual'", "got 'turbo'"]),
        ({"prompt": "a", "logprobs": "yes"}, ["logprobs", "got 'yes'"]),
        ({"prompt": "a", "spec": {"depth": 3}}, ["spec.depth: unknown key, allowed are enabled, k, tau"]),
        ({"prompt": "a", "messages": []}, ["messages"]),
        ({}, ["exactly one of `prompt` and `messages`"]),
        (["prompt"], ["(top level)"]),
    ],
)
def test_a_422_names_the_key_what_it_got_and_what_is_allowed(body: Any, parts: list[str]) -> None:
    error = refusal(body)
    assert (error.status, error.code, error.retryable) == (422, "invalid_request", False)
    for part in parts:
        assert part in error.message


def test_one_422_names_all_problems() -> None:
    message = refusal({"prompt": "a", "speed": 200, "top_p": 0}).message
    assert "speed" in message
    assert "top_p" in message


def test_a_prompt_of_exactly_the_limit_passes_and_a_longer_one_is_a_400() -> None:
    assert parse_inference({"prompt": "x" * 20}, CONFIG).prompt == "x" * 20
    error = refusal({"prompt": "x" * 21})
    assert (error.status, error.code) == (400, "prompt_too_long")
    assert "21 characters" in error.message
    assert "max_prompt_chars = 20" in error.message


def test_the_messages_of_a_chat_count_together() -> None:
    chat = [{"role": "user", "content": "x" * 15}, {"role": "assistant", "content": "y" * 15}]
    assert "30 characters" in refusal({"messages": chat}).message


def test_mock_is_a_403_unless_the_operator_allows_it() -> None:
    error = refusal({"prompt": "Hi", "mock": True})
    assert (error.status, error.code, error.retryable) == (403, "mock_not_allowed", False)
    assert "allow_mock: true" in error.message
    for config in (app_config(allow_mock=True), app_config(inference_mode="mock")):
        assert parse_inference({"prompt": "Hi", "mock": True}, config).mock is True


@pytest.mark.parametrize("value", [b"application/json", b"Application/JSON; charset=utf-8", b"application/json;x=y"])
async def test_the_json_content_type_may_have_parameters(value: bytes) -> None:
    whole = Request({"type": "http", "method": "POST", "headers": [(b"content-type", value)]}, request(b"{}").receive)
    assert await read_json(whole, LIMITS) == {}


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"content-type", b"text/plain")],
        [(b"content-type", b"application/x-www-form-urlencoded")],
        [(b"content-type", b"multipart/form-data; boundary=application/json")],
        [(b"content-type", b"text/plain; application/json")],
        [(b"content-type", b"application/jsonp")],
    ],
)
async def test_content_types_that_need_no_preflight_are_not_read_as_json(
    headers: list[tuple[bytes, bytes]],
) -> None:
    simple = Request({"type": "http", "method": "POST", "headers": headers}, request(b"{}").receive)
    with pytest.raises(ApiError, match="must be application/json") as error:
        await read_json(simple, LIMITS)
    assert (error.value.status, error.value.code) == (415, "unsupported_media_type")


@pytest.mark.parametrize(("opened", "closed"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
@pytest.mark.parametrize("levels", [66, 250, 255, 500, 1020, 1030, 5000])
async def test_a_body_nested_too_deeply_is_a_400_before_anything_recurses(
    opened: bytes, closed: bytes, levels: int
) -> None:
    times = levels // (opened.count(b"[") + opened.count(b"{"))
    raw = opened * times + b"1" + closed * times
    with pytest.raises(ApiError) as error:
        await read_json(request(raw), Limits())
    assert (error.value.status, error.value.code) in {(400, "too_deep"), (400, "not_json")}


async def test_nesting_is_limited_and_the_number_of_siblings_is_not() -> None:
    raw = b"[" + b",".join([b"[" * 63 + b"1" + b"]" * 63] * 3) + b"]"
    assert len(await read_json(request(raw), Limits())) == 3
    with pytest.raises(ApiError, match="more than 64 nested levels"):
        await read_json(request(b"[" + raw + b"]"), Limits())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": "a", "stop": 3}, "stop: Input should be a list, got 3"),
        ({"prompt": "a", "stop": [None]}, "stop.0: Input should be a valid string, got null"),
        ({"prompt": "a", "stop": ["x"] * 5}, "stop: Should have at most 4 entries, got"),
        ({"prompt": "a", "stop": [""]}, "stop.0: String should have at least 1 character, got ''"),
        ({"messages": []}, "messages: Should have at least 1 entries, got []"),
        ({"messages": "Hi"}, "messages: Input should be a list, got 'Hi'"),
        ({"messages": ["Hi"]}, "messages.0: Input should be an object, got 'Hi'"),
        ({"prompt": None, "messages": None}, "give exactly one of"),
        ({"prompt": "a", "mode": None}, "mode: Input should be 'auto' or 'manual', got null"),
        ({"prompt": "a", "spec": {"k": -1}}, "spec.k: must be an integer 0-32 or 'auto', got -1"),
        ({"prompt": "a", "spec": {"k": True}}, "spec.k: must be an integer 0-32 or 'auto', got true"),
        ({"prompt": "a", "spec": {"tau": 1.5}}, "spec.tau: must be a number 0-1 or 'auto', got 1.5"),
        ({"prompt": "a", "spec": {"drafts": 1}}, "spec.drafts: Input should be 'own', 'ngram' or 'auto', got 1"),
        ({"prompt": "a", "mock": None}, "mock: Input should be a valid boolean, got null"),
    ],
)
def test_no_error_message_uses_pythons_terms(body: Any, message: str) -> None:
    text = refusal(body).message
    assert message in text
    for word in ("tuple", "Tuple", "None", "True", "False", "dict", "constrained", "literal"):
        assert word not in text


@pytest.mark.parametrize(
    ("body", "problems"),
    [
        ({"prompt": "a", "spec": {"k": "many", "tau": "half"}}, ["spec.k", "spec.tau"]),
        ({"messages": [{"role": "x", "content": "y"}]}, ["messages.0.role"]),
        ({"prompt": "a", "stop": ["a", 3, ""]}, ["stop.1", "stop.2"]),
    ],
)
def test_each_problem_is_told_once(body: Any, problems: list[str]) -> None:
    assert [problem.partition(":")[0] for problem in refusal(body).message.split("; ")] == problems


def test_stop_may_be_a_string_as_in_openais_api() -> None:
    for given in ("END", ["END"]):
        assert parse_inference({"prompt": "a", "stop": given}, CONFIG).stop == ("END",)
