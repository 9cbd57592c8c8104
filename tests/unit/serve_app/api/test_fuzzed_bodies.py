"""Nearly valid bodies (`bench/fuzzing`) are planned, or refused with an error of the client's; nothing else happens."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from bench.fuzzing.bodies import nearly_valid
from router.observation import Observation
from serve_app.api.body import parse_inference, parse_json
from serve_app.api.errors import ApiError, error_body
from serve_app.api.planning import generation_request, planned
from serve_app.api.v1.anthropic import COUNT_TOKENS, MESSAGES
from serve_app.api.v1.body import parse_v1
from serve_app.api.v1.openai import CHAT, COMPLETIONS, RESPONSES
from serve_app.api.v1.planning import engine_call, plan_v1
from tests.support.app_config import app_config

CONFIG = app_config()
COLD = Observation()
V1 = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": COUNT_TOKENS,
}


def refused(raw: bytes, path: str) -> ApiError | None:
    """Parse and plan a body, as the ingress does; the error that its client gets, if it gets one."""
    try:
        body = parse_json(raw)
        if path == "/api/inference":
            request = parse_inference(body, CONFIG)
            generation_request("r1", request, planned(request, COLD, CONFIG))
        else:
            given = parse_v1(body, V1[path], CONFIG.limits)
            made = plan_v1(given, COLD, CONFIG)
            given.check_length(made.entry.max_model_len)
            engine_call(Request({"type": "http", "method": "POST", "path": path, "headers": []}), given, made, "r1")
    except ApiError as error:
        return error
    return None


@given(st.sampled_from(("/api/inference", *V1)).flatmap(lambda path: st.tuples(nearly_valid(path), st.just(path))))
def test_a_nearly_valid_body_is_planned_or_refused_as_the_clients_fault(drawn: tuple[bytes, str]) -> None:
    error = refused(*drawn)
    if error is not None:
        assert 400 <= error.status < 500
        assert orjson.loads(orjson.dumps(error_body(error, "r1")))["error"]["message"]
