"""Errors as clients see them: one JSON form, `Retry-After` on every 503."""

from __future__ import annotations

import orjson
import pytest

from serve_app.api.errors import ApiError, Failure, bad_request, error_response, overloaded
from serve_app.engine.interface import EngineError


def test_a_503_has_retry_after() -> None:
    response = error_response(overloaded("tier eco has too many requests waiting"), "r1")
    assert response.status_code == 503
    assert response.headers["retry-after"] == "5"
    assert orjson.loads(response.body)["error"]["retryable"] is True


def test_the_json_form_is_one_that_openai_sdks_read() -> None:
    response = error_response(bad_request("model: got 'x'", code="model_not_found", status=404), "r1")
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"] == "r1"
    assert "retry-after" not in response.headers
    assert orjson.loads(response.body) == {
        "error": {
            "code": "model_not_found",
            "message": "model: got 'x'",
            "retryable": False,
            "request_id": "r1",
            "type": "invalid_request_error",
        }
    }


@pytest.mark.parametrize(
    ("status", "kind"), [(400, "invalid_request_error"), (499, "invalid_request_error"), (500, "server_error")]
)
def test_the_error_type_follows_the_status(status: int, kind: str) -> None:
    body = orjson.loads(error_response(ApiError("c", "m", status=status), "r1").body)
    assert body["error"]["type"] == kind


def test_an_engines_error_travels_between_processes_as_data() -> None:
    failure = Failure.of(EngineError("engine_failed", "out of memory", status=500, retryable=True))
    error = failure.as_api_error()
    assert (error.code, error.message, error.status, error.retryable) == ("engine_failed", "out of memory", 500, True)
