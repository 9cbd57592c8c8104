"""Errors as clients see them. `ApiError` is the only exception that routes raise; its HTTP form is made here.

ApiError            anything that ends a request
  of BadRequest     4xx: the client must change the request
  of Unavailable    503 with Retry-After: the same request may work later
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from starlette.responses import Response

from serve_app.engine.interface import EngineError


class ApiError(Exception):
    """A request ends with this error: as an HTTP response if none has begun, as an `error` event otherwise."""

    def __init__(
        self, code: str, message: str, *, status: int, retryable: bool = False, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.retryable = retryable
        self.retry_after_s = retry_after_s


def bad_request(message: str, code: str = "bad_request", status: int = 400) -> ApiError:
    """The client must change the request."""
    return ApiError(code, message, status=status)


def overloaded(message: str, retry_after_s: int) -> ApiError:
    """Too much at once; the same request may work after `retry_after_s` seconds."""
    return ApiError("overloaded", message, status=503, retryable=True, retry_after_s=retry_after_s)


def raise_if_late(waited_s: float, limit_s: float) -> None:
    """A request that has taken longer than it may.

    Raises:
        ApiError: 504.
    """
    if waited_s > limit_s:
        raise ApiError("timeout", f"no end after {limit_s:g} s", status=504, retryable=True)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that an engine replica sends as the last item of a stream: data, since exceptions lose their type on
    the way between processes."""

    code: str
    message: str
    status: int
    retryable: bool

    @classmethod
    def of(cls, error: EngineError) -> Failure:
        """What an engine raised, as data."""
        return cls(error.code, error.message, error.status, error.retryable)

    def as_api_error(self) -> ApiError:
        """The same error, to raise."""
        return ApiError(self.code, self.message, status=self.status, retryable=self.retryable)


def error_data(error: ApiError, request_id: str) -> dict[str, Any]:
    """The data of an `error` event."""
    return {"code": error.code, "message": error.message, "retryable": error.retryable, "request_id": request_id}


def error_response(error: ApiError, request_id: str, retry_after_s: int | None = None) -> Response:
    """The JSON error response; its form is one that OpenAI's SDKs read too (`error.message`, `error.type`).

    Args:
        error: what ended the request.
        request_id: of the request.
        retry_after_s: `Retry-After` of a 503 that does not say when, s.
    """
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    body = {"error": error_data(error, request_id) | {"type": kind}}
    headers = {"x-request-id": request_id}
    wait_s = error.retry_after_s or (retry_after_s if error.status == 503 else None)
    if wait_s is not None:
        headers["retry-after"] = str(wait_s)
    return Response(orjson.dumps(body), status_code=error.status, headers=headers, media_type="application/json")
