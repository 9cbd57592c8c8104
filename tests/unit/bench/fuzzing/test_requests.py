"""Fuzzed requests: the same for a seed, of all kinds, and what they claim to be."""

from __future__ import annotations

import contextlib
import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.fuzzing.bodies import MODELS, NASTY, encoded, nearly_valid, not_json, valid
from bench.fuzzing.case import KINDS, request_bytes
from bench.fuzzing.requests import draw_cases
from serve_app.api.body import parse_inference
from serve_app.api.v1.anthropic import COUNT_TOKENS, MESSAGES
from serve_app.api.v1.body import V1Api, parse_v1
from serve_app.api.v1.openai import CHAT, COMPLETIONS, RESPONSES
from tests.support.app_config import app_config

CONFIG = app_config()
PATHS = st.sampled_from(sorted(MODELS))
V1 = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": COUNT_TOKENS,
}


def test_a_seed_gives_the_same_requests_each_time_of_every_kind_and_another_seed_gives_others() -> None:
    first, again, other = draw_cases(60, 1), draw_cases(60, 1), draw_cases(60, 2)
    assert first == again
    assert first != other
    assert len(first) == 60
    assert {case.kind for case in first} == set(KINDS)


@given(valid("/api/inference"))
def test_valid_bodies_of_inference_are_accepted(body: object) -> None:
    parse_inference(orjson.loads(encoded(body)), CONFIG)


@given(st.sampled_from(sorted(V1)).flatmap(lambda path: st.tuples(st.just(V1[path]), valid(path))))
def test_valid_bodies_of_v1_are_accepted(drawn: tuple[V1Api, object]) -> None:
    api, body = drawn
    parse_v1(orjson.loads(encoded(body)), api, CONFIG.limits)


@given(PATHS.flatmap(not_json))
def test_what_is_no_json_object_is_none_to_the_server(raw: bytes) -> None:
    with contextlib.suppress(orjson.JSONDecodeError):
        assert not isinstance(orjson.loads(raw), dict) or len(raw) > CONFIG.limits.max_body_bytes


@given(PATHS.flatmap(nearly_valid))
def test_nearly_valid_bodies_are_json_to_a_lenient_reader(raw: bytes) -> None:
    shorter = raw.replace(b"9" * 5_000, b"9")  # Python reads no longer integers, and no deeper objects
    if b"[" * 250 not in shorter and b'{"a":' * 250 not in shorter:
        json.loads(shorter)


def test_drawing_changes_no_value_that_later_requests_use() -> None:
    before = repr(NASTY)
    draw_cases(200, 3)
    assert repr(NASTY) == before


@pytest.mark.parametrize(
    ("headers", "written"),
    [
        ((), b"POST /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"),
        (((b"Host", b"["),), b"POST /a HTTP/1.1\r\nHost: [\r\nContent-Length: 2\r\n\r\n{}"),
        (
            ((b"Content-Length", b"7"),),
            b"POST /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7\r\n\r\n{}",
        ),
    ],
)
def test_a_request_has_a_host_and_a_length_unless_others_are_given(
    headers: tuple[tuple[bytes, bytes], ...], written: bytes
) -> None:
    assert request_bytes("POST", b"/a", b"{}", headers) == written
