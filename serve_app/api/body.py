"""Request bodies: read up to a limit, parsed, and validated. Errors name the key, what it got and what is allowed."""

from __future__ import annotations

import asyncio
from typing import Any, Final, TypeVar

import orjson
from pydantic import BaseModel, Field, ValidationError
from starlette.requests import Request

from router.errors import describe_problems
from router.registry import DraftsChoice, Frozen
from router.request import InferenceRequest
from serve_app.api.errors import ApiError, bad_request
from serve_app.config import AppConfig, Limits

Body = TypeVar("Body", bound=BaseModel)

BODY_WITHIN_S: Final = 30.0
"""Longest time from a request's first byte to the last of its body, s. A slower client holds an open request."""

_MAX_LEVELS: Final = 64
"""Nested objects and lists. JSON schemas have a dozen levels; later readers of a body fail at 250."""


class DraftsRequest(Frozen):
    """Body of `POST /api/tiers/{tier}/drafts`."""

    drafts: DraftsChoice = Field(
        description="Who drafts for requests that do not choose: the chain entry's own draft model or head, n-gram "
        "lookup, or whichever the controller picks."
    )


async def read_json(request: Request, limits: Limits) -> Any:
    """Return the body, parsed as JSON.

    Raises:
        ApiError: 415 if its content-type is not JSON, 413 if it is too large, 408 if it does not arrive in time, 400 if
            it is not JSON or nested too deeply.
    """
    # Web pages of any origin may send other content-types without a preflight request, so none is read as JSON.
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        message = f"content-type: got {media_type!r}, must be application/json"
        raise bad_request(message, code="unsupported_media_type", status=415)
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            raw = await _read(request, limits)
    except TimeoutError as error:
        message = f"the body did not arrive within {BODY_WITHIN_S:g} s"
        raise ApiError("body_timeout", message, status=408) from error
    return parse_json(raw)


def parse_json(raw: bytes) -> Any:
    """Return a body, parsed.

    Raises:
        ApiError: 400 if it is not JSON or nested too deeply.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"the body is not JSON: {error}", code="not_json") from error
    if _is_deeper(body, _MAX_LEVELS):
        raise bad_request(f"the body has more than {_MAX_LEVELS} nested levels of objects and lists", code="too_deep")
    return body


async def _read(request: Request, limits: Limits) -> bytes:
    size, chunks = 0, []
    async for chunk in request.stream():
        size += len(chunk)
        if size > limits.max_body_bytes:
            message = f"the body has more bytes than limits.max_body_bytes = {limits.max_body_bytes}"
            raise ApiError("body_too_large", message, status=413)
        chunks.append(chunk)
    return b"".join(chunks)


def _is_deeper(body: object, levels: int) -> bool:
    """Return whether objects and lists are nested deeper than so many levels."""
    level = [body] if isinstance(body, dict | list) else []
    for _ in range(levels):
        if not level:
            return False
        level = [
            item
            for outer in level
            for item in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(item, dict | list)
        ]
    return bool(level)


def validated(model: type[Body], body: Any) -> Body:
    """Return the body as a model.

    Raises:
        ApiError: 422 naming each wrong key.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        message = "; ".join(describe_problems(error, model))
        raise ApiError("invalid_request", message, status=422) from error


def parse_inference(body: Any, config: AppConfig) -> InferenceRequest:
    """Return the body of `/api/inference` as a request.

    Raises:
        ApiError: 422 naming each wrong key, 400 for a prompt that is too long, 403 for `mock` where it is not allowed.
    """
    request = validated(InferenceRequest, body)
    if request.mock and not config.mock_allowed:
        message = "mock: got true, allowed only if this server's operator sets `allow_mock: true`"
        raise bad_request(message, code="mock_not_allowed", status=403)
    check_characters(sum(len(message.content) for message in request.chat()), config.limits)
    return request


def check_characters(chars: int, limits: Limits) -> None:
    """Check the length of a whole conversation.

    Raises:
        ApiError: 400.
    """
    if chars > limits.max_prompt_chars:
        message = f"prompt: has {chars} characters, allowed are limits.max_prompt_chars = {limits.max_prompt_chars}"
        raise bad_request(message, code="prompt_too_long")
