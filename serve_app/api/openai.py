"""The OpenAI routes: the router picks the tier, vLLM's own OpenAI layer in the replica answers.

Of the checked body (`openai_body.py`) only `model` and `spec` (ours) are rewritten; everything else (tools, logprobs,
stop, usage, structured output) goes through.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from router.difficulty.classify import classify_prompt
from router.errors import describe_problems
from router.observation import Observation
from router.plan import plan
from router.registry import TIER_NAMES, TierName
from router.request import InferenceRequest
from router.runs.past_drafts import drafts_are_waste
from router.runs.summary import NO_RUNS
from router.spec_params import SpecParams
from router.without_drafts import fields_without_drafts, nearest, tiers_without_drafts
from serve_app.api.errors import ApiError, Failure, bad_request, error_data, raise_if_late
from serve_app.api.sse import PING, SSE_HEADERS
from serve_app.api.streaming import ClosingStream
from serve_app.config import AppConfig
from serve_app.pool.view import PoolView
from serve_app.transport.asgi_call import HttpCall, ResponseStart
from serve_app.transport.inbox import TICK, Inbox, Tick

AUTO = "auto"
MODELS = (AUTO, *TIER_NAMES)
# Set anew for every hop; the rest of the engine's response headers go to the client.
_HOP_HEADERS = frozenset((b"content-length", b"transfer-encoding", b"connection", b"date", b"server"))

_DONE = b"data: [DONE]\n\n"
"""Ends a stream, also after an error, as vLLM's do: a client that waits for it must not wait for ever."""

SPEC = "spec"
"""Our one field in an OpenAI body: `SpecParams`, as `/api/inference` takes them."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the router decided for an OpenAI request."""

    tier: TierName
    spec: SpecParams
    """Resolved."""
    category: str
    """Of the prompt."""


def choose(body: Mapping[str, Any], config: AppConfig, observation: Observation) -> Choice:
    """The tier, and how its engine shall speculate.

    Raises:
        ApiError: no such model, or a wrong `spec`.
    """
    tier = _able(pick_tier(body, config, observation), body, config, observation)
    try:
        requested = SpecParams.model_validate(body.get(SPEC) or {})
    except ValidationError as error:
        problems = "; ".join(f"{SPEC}.{problem}" for problem in describe_problems(error, SpecParams))
        raise ApiError("invalid_request", problems, status=422) from error
    state = observation.tier(tier)
    speculation = config.entry(tier, state.active_entry).speculation
    category = classify_prompt(_prompt_text(body)).category
    past = state.recent_by_category.get(category, NO_RUNS)
    spec, _ = requested.resolve(speculation, wasteful=drafts_are_waste(speculation, requested, past))
    return Choice(tier, spec, category)


def pick_tier(body: Mapping[str, Any], config: AppConfig, observation: Observation) -> TierName:
    """The tier that `model` names; for `auto`, the router's choice for the prompt.

    Raises:
        ApiError: no such model.
    """
    model = body.get("model", AUTO)
    for name in TIER_NAMES:
        if model == name:
            return name
    if model != AUTO:
        raise model_not_found(model)
    return plan(InferenceRequest(prompt=_prompt_text(body) or " "), observation, config).tier


def model_not_found(model: str) -> ApiError:
    """There is no such model."""
    return bad_request(f"model: got {model!r}, allowed are {', '.join(MODELS)}", code="model_not_found", status=404)


def _able(tier: TierName, body: Mapping[str, Any], config: AppConfig, observation: Observation) -> TierName:
    """The tier itself; for `auto` and a request that an engine which drafts refuses, the nearest tier that does not.

    Raises:
        ApiError: the tier is named and drafts, or every tier drafts.
    """
    fields = fields_without_drafts(body)
    able = tiers_without_drafts(config, observation) if fields else ()
    if not fields or tier in able:
        return tier
    other = nearest(tier, able)
    if other is not None and body.get("model", AUTO) == AUTO:
        return other
    why = f"{' and '.join(fields)}: not with speculative decoding, which"
    if other is None:
        raise bad_request(f"{why} every tier uses now")
    raise bad_request(f"{why} the {tier} tier uses; without it: {', '.join(able)}, or model {AUTO}")


def _prompt_text(body: Mapping[str, Any]) -> str:
    """The text to judge: the last user message of a chat, or the prompt; "" where there is none to read."""
    messages = body.get("messages")
    if isinstance(messages, list):
        users = [m for m in messages if isinstance(m, dict) and m.get("role") == "user"]
        content = users[-1].get("content") if users else None
        if isinstance(content, list):
            return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        return content if isinstance(content, str) else ""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and all(isinstance(part, str) for part in prompt):
        return "\n".join(prompt)
    return prompt if isinstance(prompt, str) else ""


def engine_call(request: Request, body: Mapping[str, Any], choice: Choice, request_id: str) -> HttpCall:
    """The request for the tier's engine: `spec` is not vLLM's, and becomes extra sampling arguments."""
    rest = {key: value for key, value in body.items() if key != SPEC}
    raw = orjson.dumps({**rest, "model": choice.tier, "vllm_xargs": choice.spec.to_arguments(choice.category)})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(raw)).encode()),
        (b"x-request-id", request_id.encode()),
    ]
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    return HttpCall(request.method, path, headers, raw)


@dataclass(slots=True)
class OpenAIExchange:
    """One OpenAI request under way.

    Args:
        tier: where it runs.
        request_id: for error bodies and the response header.
        streaming: whether the client asked for SSE.
        inbox: the replica's response.
        config: limits and intervals.
        pool: tells whether waiting for a cold tier is useless.
        arrived_s: monotonic clock at arrival, s.
    """

    tier: TierName
    request_id: str
    streaming: bool
    inbox: Inbox[ResponseStart | bytes | Failure]
    config: AppConfig
    pool: PoolView
    arrived_s: float = field(default_factory=time.monotonic)

    async def respond(self) -> Response:
        """The response: the engine's own, or for a stream that must wait long, one that pings until it comes.

        Raises:
            ApiError: the tier cannot serve the request.
        """
        try:
            start = await self._start(self.config.relay.status_every_s, give_way=self.streaming)
            if start is None:
                return ClosingStream(self._late_stream(), 200, self._headers("text/event-stream"), self.inbox.aclose)
            headers = [pair for pair in start.headers if pair[0].lower() not in _HOP_HEADERS]
            extra = self._headers(None)
            if start.status == 503:
                extra |= {"retry-after": str(self.config.limits.retry_after_s)}
                headers = [pair for pair in headers if pair[0].lower() != b"retry-after"]
            raw = headers + [(key.encode(), value.encode()) for key, value in extra.items()]
            return ClosingStream(self._body(), start.status, raw, self.inbox.aclose)
        except BaseException:
            await self.inbox.aclose()
            raise

    def _headers(self, media_type: str | None) -> dict[str, str]:
        headers = {"x-power-lever-tier": self.tier, "x-request-id": self.request_id}
        if self.streaming:
            headers |= SSE_HEADERS
        return headers | ({"content-type": media_type} if media_type else {})

    async def _start(self, wait_s: float, give_way: bool) -> ResponseStart | None:
        """The response's start; None when it may `give_way` to pings and has not come in time."""
        while True:
            item = await self._next(wait_s)
            if isinstance(item, ResponseStart):
                return item
            if item is not TICK:
                raise ApiError("stream_cut", "the engine gave no response", status=502, retryable=True)
            self._give_up_if_hopeless()
            if give_way:
                return None

    async def _next(self, wait_s: float) -> ResponseStart | bytes | Tick | None:
        """The replica's next item; see `Inbox.get`.

        Raises:
            ApiError: the replica has sent a failure.
        """
        item = await self.inbox.get(wait_s)
        if isinstance(item, Failure):
            raise item.as_api_error()
        return item

    async def _body(self) -> AsyncIterator[bytes]:
        try:
            while (item := await self._next(self.config.relay.ping_every_s)) is not None:
                self._give_up_if_late()
                if isinstance(item, bytes):
                    yield item
                elif item is TICK and self.streaming:
                    yield PING
        except ApiError as error:
            if self.streaming:
                yield self._error_chunk(error)
            else:
                raise
        finally:
            await self.inbox.aclose()

    async def _late_stream(self) -> AsyncIterator[bytes]:
        """A 200 was sent before the engine answered: what it then says goes into the stream, an error too."""
        relay = self.config.relay
        try:
            yield PING
            start = None
            while start is None:
                start = await self._start(min(relay.ping_every_s, relay.status_every_s), give_way=True)
                yield PING
            if start.status == 200:
                async for piece in self._body():
                    yield piece
            else:
                # An error body is one line of JSON: as an SSE `data` line, SDKs raise it.
                body = b"".join([piece async for piece in self._body() if piece != PING])
                yield b"data: " + body.replace(b"\n", b" ") + b"\n\n" + _DONE
        except ApiError as error:
            yield self._error_chunk(error)
        finally:
            await self.inbox.aclose()

    def _error_chunk(self, error: ApiError) -> bytes:
        return b"data: " + orjson.dumps({"error": error_data(error, self.request_id)}) + b"\n\n" + _DONE

    def _give_up_if_hopeless(self) -> None:
        self.pool.raise_if_failed(self.tier)
        self._give_up_if_late()

    def _give_up_if_late(self) -> None:
        raise_if_late(time.monotonic() - self.arrived_s, self.config.limits.request_timeout_s)
