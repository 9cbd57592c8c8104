"""Errors as clients see them.

ApiError   the one exception that ends a request; its HTTP form is made here
Failure    the same as data, on its way from a replica to the ingress
ErrorForm  whose clients read it: each API's SDK looks for its own fields
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson
from starlette.responses import Response

from serve_app.engine.interface import EngineError

ASK_FOR_KEY: Final = {"www-authenticate": "Bearer"}
"""Header of every 401 (RFC 6750, 3)."""
RETRY_LATER: Final = {"retry-after": "5"}
"""Header of every 503, s: a tier that is full or restarts has changed by then."""

DONE: Final = b"data: [DONE]\n\n"
"""Ends a stream of the older OpenAI routes, also after an error, as vLLM's streams do: a client waits for it."""
ErrorForm = Literal["openai", "responses", "anthropic"]
RATE_LIMIT: Final = "rate_limit_error"
"""Type of a 429 in both APIs."""
_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: RATE_LIMIT,
    503: "overloaded_error",
    504: "timeout_error",
}
"""Types of Anthropic's errors by status; of others below 500 `invalid_request_error`, else `api_error`."""


class ApiError(Exception):
    """Ends a request: as an HTTP response if none has begun, else as an `error` event or error chunk in the stream."""

    def __init__(
        self, code: str, message: str, *, status: int, retryable: bool = False, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.code = code
        self.message = message
        self.status = status
        self.retryable = retryable


def bad_request(message: str, code: str = "bad_request", status: int = 400) -> ApiError:
    """Return the error of a request that the client must change."""
    return ApiError(code, message, status=status)


def overloaded(message: str) -> ApiError:
    """Return the error of a request that may work later, when less is open."""
    return ApiError("overloaded", message, status=503, retryable=True)


def incomplete_stream() -> ApiError:
    """Return the error of an engine's stream that ended before its answer did."""
    return ApiError("stream_cut", "the engine's answer ended early", status=502, retryable=True)


def internal_error() -> ApiError:
    """Return the error of a fault in the ingress."""
    return ApiError("internal_error", "the ingress failed", status=500, retryable=True)


def raise_if_late(waited_s: float, limit_s: float) -> None:
    """Hold the time since a request arrived against its limit.

    Raises:
        ApiError: 504.
    """
    if waited_s > limit_s:
        message = f"the answer was not complete after {limit_s:g} s (limits.request_timeout_s)"
        raise ApiError("timeout", message, status=504, retryable=True)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that a replica sends as the last item of a stream. Exceptions lose their type between processes."""

    code: str
    message: str
    status: int
    retryable: bool

    @classmethod
    def of(cls, error: EngineError) -> Failure:
        """Return an engine's error as data."""
        return cls(error.code, error.message, error.status, error.retryable)

    def as_api_error(self) -> ApiError:
        """Return the same error, to raise."""
        return ApiError(self.code, self.message, status=self.status, retryable=self.retryable)


def error_form(path: str) -> ErrorForm:
    """Return the form of errors that the clients of a path read, whatever the application's prefix is."""
    return "anthropic" if "/v1/messages" in path else "openai"


def error_data(error: ApiError, request_id: str) -> dict[str, Any]:
    """Return the data of an `error` event."""
    return {"code": error.code, "message": error.message, "retryable": error.retryable, "request_id": request_id}


def error_body(error: ApiError, request_id: str, form: ErrorForm = "openai") -> dict[str, Any]:
    """Return the JSON of an error, as the SDKs of an API read it (`error.message`, `error.type`)."""
    data = error_data(error, request_id)
    if form == "anthropic":
        kind = "invalid_request_error" if error.status < 500 else "api_error"
        data["type"] = _ANTHROPIC_TYPES.get(error.status, kind)
        return {"type": "error", "error": data, "request_id": request_id}
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": data | {"type": RATE_LIMIT if error.status == 429 else kind}}


def error_events(error: ApiError, request_id: str, form: ErrorForm) -> bytes:
    """Return the end of a stream of the `/v1` routes that failed after it had begun."""
    if form == "openai":
        return b"data: " + orjson.dumps({"error": error_data(error, request_id)}) + b"\n\n" + DONE
    body = error_body(error, request_id, form)
    if form == "responses":  # OpenAI's event, with `error` too, for which its SDK looks
        body |= {"type": "error", "code": error.code, "message": error.message, "param": None, "sequence_number": 0}
    return b"event: error\ndata: " + orjson.dumps(body) + b"\n\n"


def error_response(error: ApiError, request_id: str, form: ErrorForm = "openai") -> Response:
    """Return the JSON error response."""
    more = {401: ASK_FOR_KEY, 503: RETRY_LATER}.get(error.status, {})
    headers = {"x-request-id": request_id} | more
    if error.retry_after_s is not None:
        headers["retry-after"] = str(error.retry_after_s)
    body = orjson.dumps(error_body(error, request_id, form))
    return Response(body, status_code=error.status, headers=headers, media_type="application/json")
