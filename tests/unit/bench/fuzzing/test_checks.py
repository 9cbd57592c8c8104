"""Each fault of an answer is found, and a right answer has none."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from bench.fuzzing.case import Case
from bench.fuzzing.checks import documented_codes, faults
from bench.fuzzing.exchange import Answer, Exchange

CODES = frozenset(("bad_request", "overloaded"))
ID = (b"x-request-id", b"r1")
JSON = (b"content-type", b"application/json")
SSE = (b"content-type", b"text/event-stream; charset=utf-8")
PROXYS_400 = b"<html><body><h1>400 Bad request</h1>\nYour browser sent an invalid request.\n</body></html>\n"
CASE = Case("nearly valid", (b"x",), "/api/inference")


def error(code: object = "bad_request", message: object = "wrong", **more: Any) -> bytes:
    ours = {"code": code, "message": message, "retryable": False, "request_id": "r1", "type": "invalid_request_error"}
    return json.dumps({"error": ours | more}).encode()


def found(case: Case, status: int, body: bytes, *headers: tuple[bytes, bytes], complete: bool = True) -> list[str]:
    return list(faults(Exchange(case, [Answer(status, headers, body, complete)]), CODES))


def test_the_documented_codes_are_those_of_the_page() -> None:
    codes = documented_codes()
    assert {"invalid_request", "not_json", "overloaded", "request_timeout"} <= codes
    assert "speed" not in codes


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (400, error(), (ID, JSON)),
        (503, error("overloaded"), (ID, JSON, (b"retry-after", b"5"))),
        (200, b'data: {"type":"config"}\n\n: ping\n\ndata: {"type":"done"}\n\n', (ID, SSE)),
        (200, b'{"object":"list"}', (ID, JSON)),
        (404, b'{"error": {"code": "bad_request", "message": "by HAProxy", "type": "t"}}', (JSON,)),
    ],
)
def test_a_right_answer_has_no_fault(status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> None:
    assert found(CASE, status, body, *headers) == []


@pytest.mark.parametrize(
    ("status", "body", "headers", "fault"),
    [
        (500, error(), (ID, JSON), "500 "),
        (502, error(), (ID, JSON), "502 "),
        (503, error("overloaded"), (ID, JSON), "no Retry-After"),
        (400, b"<html>", (ID,), "no error in JSON"),
        (400, error(message=None), (ID, JSON), "no error in JSON"),
        (400, error("new_code"), (ID, JSON), "'new_code' is not documented"),
        (400, error(400), (ID, JSON), "400 is not documented"),
        (400, error(retryable=None), (ID, JSON), "no retryable"),
        (400, error(type=None), (ID, JSON), "no type"),
        (400, error(message='File "/x/site-packages/a.py"'), (ID, JSON), "shows site-packages"),
        (400, error(), (ID, ID, JSON), "2 request ids"),
        (400, PROXYS_400, (), "no error in JSON"),
        (200, b'data: {"type":"config"}\n\n', (ID, SSE), "ends at []"),
        (200, b'data: {"type":"done"}\n\ndata: {"type":"done"}\n\n', (ID, SSE), "ends at [0, 1]"),
        (200, b'data: {"type":"done"}\n\ndata: {"type":"token"}\n\n', (ID, SSE), "ends at [0]"),
        (200, b'data: {"type":"done"}\n\ndata: half', (ID, SSE), "no event"),
        (200, b"[1]", (ID, JSON), "no JSON object"),
    ],
)
def test_a_fault_is_found(status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...], fault: str) -> None:
    [only] = found(CASE, status, body, *headers)
    assert fault in only


@pytest.mark.parametrize(
    ("path", "end"),
    [
        ("/v1/chat/completions", b"data: [DONE]\n\n"),
        ("/v1/messages", b'event: message_stop\ndata: {"type":"message_stop"}\n\n'),
        ("/v1/responses", b'event: response.completed\ndata: {"type":"response.completed"}\n\n'),
    ],
)
def test_a_stream_ends_as_its_api_says(path: str, end: bytes) -> None:
    case = replace(CASE, path=path)
    assert found(case, 200, b'data: {"type":"x"}\n\n' + end, ID, SSE) == []
    assert found(case, 200, end + b'data: {"type":"x"}\n\n', ID, SSE) != []


def test_vllms_own_errors_on_v1_have_a_numeric_code() -> None:
    body = json.dumps({"error": {"code": 400, "message": "m", "type": "BadRequestError", "param": None}}).encode()
    assert found(replace(CASE, path="/v1/completions"), 400, body, ID, JSON) == []


def test_an_error_on_messages_must_have_anthropics_form() -> None:
    case = replace(CASE, path="/v1/messages")
    assert found(case, 400, error(), ID, JSON) == ["400 bad_request: not in Anthropic's form"]
    assert found(case, 400, json.dumps({"type": "error"} | json.loads(error())).encode(), ID, JSON) == []


def test_haproxys_400_is_right_only_for_what_may_be_no_http() -> None:
    assert found(replace(CASE, kind="broken HTTP"), 400, PROXYS_400) == []
    assert found(CASE, 400, PROXYS_400) != []
    assert found(replace(CASE, kind="broken HTTP"), 422, PROXYS_400) != []


def test_what_must_be_served_or_refused_is() -> None:
    assert found(replace(CASE, must_serve=True), 400, error(), ID, JSON) != []
    assert found(replace(CASE, must_refuse=True), 200, b"{}", ID, JSON) == ["200, and not refused"]


def test_no_answer_too_many_answers_a_cut_one_and_a_hang_are_faults() -> None:
    fine = Answer(200, (ID, JSON), b"{}", complete=True)
    assert list(faults(Exchange(CASE), CODES)) == ["closed without an answer"]
    assert list(faults(Exchange(replace(CASE, must_answer=False)), CODES)) == []
    assert list(faults(Exchange(CASE, [fine, fine]), CODES)) == ["2 answers to 1 requests"]
    assert found(CASE, 200, b"{", ID, JSON, complete=False) == ["200: cut off"]
    assert found(replace(CASE, leaves_after=1), 200, b"{", ID, JSON, complete=False) == []
    assert list(faults(Exchange(CASE, hung=True), CODES)) == ["no end in time"]
    assert list(faults(Exchange(CASE, unreadable="bad line"), CODES)) == ["not HTTP: bad line"]
