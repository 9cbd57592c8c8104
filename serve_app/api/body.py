"""Request bodies: read with a limit, parsed and validated into a model, with errors that name the key."""

from __future__ import annotations

import asyncio
from typing import Any, Final, TypeVar

import orjson
from pydantic import BaseModel, Field, ValidationError
from starlette.requests import Request

from router.errors import describe_problems
from router.registry import Drafts, Frozen
from router.request import InferenceRequest
from serve_app.api.errors import ApiError, bad_request
from serve_app.api.openai.body import check_characters
from serve_app.config import AppConfig, Limits

Body = TypeVar("Body", bound=BaseModel)

BODY_WITHIN_S: Final = 30.0
"""Longest time from a request's first byte to the last of its body, s; then its place is for others."""

_MOST_LEVELS: Final = 64
"""Objects and lists inside each other. JSON schemas have a dozen; what reads a body later gives up at 250."""


class DraftsWish(Frozen):
    """Body of `POST /api/tiers/{tier}/drafts`."""

    drafts: Drafts = Field(description="Who shall draft: the step's own draft model or head, or n-gram lookup.")


async def read_json(request: Request, limits: Limits) -> Any:
    """The body as JSON.

    Raises:
        ApiError: 415 when it does not say that it is JSON, 413 when it is too large, 408 when it does not come,
            400 when it is not JSON, or nested too deeply.
    """
    # Web pages of any origin may send other types without asking first (a preflight), so none of them is read as JSON.
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        message = f"content-type: got {media_type!r}, must be application/json"
        raise bad_request(message, code="unsupported_media_type", status=415)
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            raw = await _read(request, limits)
    except TimeoutError as error:
        message = f"the body did not come within {BODY_WITHIN_S:g} s"
        raise ApiError("body_timeout", message, status=408) from error
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"the body is not JSON: {error}", code="not_json") from error
    if _is_deeper(body, _MOST_LEVELS):
        raise bad_request(f"the body has more than {_MOST_LEVELS} levels of objects and lists", code="too_deep")
    return body


async def _read(request: Request, limits: Limits) -> bytes:
    size, chunks = 0, []
    async for chunk in request.stream():
        size += len(chunk)
        if size > limits.max_body_bytes:
            message = f"the body has more than max_body_bytes = {limits.max_body_bytes} bytes"
            raise ApiError("body_too_large", message, status=413)
        chunks.append(chunk)
    return b"".join(chunks)


def _is_deeper(body: object, levels: int) -> bool:
    """Whether objects and lists stand inside each other more than so many levels deep."""
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
    """The body as a model.

    Raises:
        ApiError: 422 naming each wrong key.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        message = "; ".join(describe_problems(error, model))
        raise ApiError("invalid_request", message, status=422) from error


def parse_inference(body: Any, config: AppConfig) -> InferenceRequest:
    """The body of `/api/inference` as a request.

    Raises:
        ApiError: 422 naming each wrong key, 400 for a prompt that is too long, 403 for `mock` where it is not allowed.
    """
    wish = validated(InferenceRequest, body)
    if wish.mock and not config.mock_allowed:
        message = "mock: the stub engine answers only where the operator of this server has set `allow_mock: true`"
        raise bad_request(message, code="mock_not_allowed", status=403)
    check_characters(sum(len(message.content) for message in wish.chat()), config.limits)
    return wish
