"""Request bodies: read with a limit, parsed and validated into a model, with errors that name the key."""

from __future__ import annotations

import asyncio
from typing import Any, Final, TypeVar

import orjson
from pydantic import BaseModel, Field, ValidationError
from starlette.requests import Request

from router.errors import describe_problems
from router.request import InferenceRequest
from router.tiers import Drafts, Frozen
from serve_app.config import AppConfig, Limits
from serve_app.errors import ApiError, bad_request

Body = TypeVar("Body", bound=BaseModel)

BODY_WITHIN_S: Final = 30.0
"""Longest time from a request's first byte to the last of its body, s; then its place is for others."""


class DraftsWish(Frozen):
    """Body of `POST /api/tiers/{tier}/drafts`."""

    drafts: Drafts = Field(description="Who shall draft: the step's own draft model or head, or n-gram lookup.")


async def read_json(request: Request, limits: Limits) -> Any:
    """The body as JSON.

    Raises:
        ApiError: 413 when it is too large, 408 when it does not come, 400 when it is not JSON.
    """
    try:
        async with asyncio.timeout(BODY_WITHIN_S):
            raw = await _read(request, limits)
    except TimeoutError as error:
        message = f"the body did not come within {BODY_WITHIN_S:g} s"
        raise ApiError("body_timeout", message, status=408) from error
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"the body is not JSON: {error}", code="not_json") from error


async def _read(request: Request, limits: Limits) -> bytes:
    size, chunks = 0, []
    async for chunk in request.stream():
        size += len(chunk)
        if size > limits.max_body_bytes:
            message = f"the body has more than max_body_bytes = {limits.max_body_bytes} bytes"
            raise ApiError("body_too_large", message, status=413)
        chunks.append(chunk)
    return b"".join(chunks)


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
    limits = config.limits
    if wish.mock and not config.mock_allowed:
        message = "mock: the stub engine answers only where the operator of this server has set `allow_mock: true`"
        raise bad_request(message, code="mock_not_allowed", status=403)
    chars = sum(len(message.content) for message in wish.chat())
    if chars > limits.max_prompt_chars:
        message = f"prompt: has {chars} characters, allowed are max_prompt_chars = {limits.max_prompt_chars}"
        raise bad_request(message, code="prompt_too_long")
    return wish
