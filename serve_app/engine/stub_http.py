"""The stub's `/v1` routes, in the smallest form that the SDKs of OpenAI and Anthropic read.

Whatever a request holds, its answer is text: the stub calls no tool.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from router.registry import ChainEntry
from router.request import Message
from router.spec_params import SpecParams
from serve_app.api.spec_view import used_spec
from serve_app.api.v1.conversation import conversation, other_text
from serve_app.engine.http_runs import current_run
from serve_app.engine.interface import (
    ID_BYTES,
    Admitted,
    EngineError,
    EngineItem,
    Finished,
    GenerationRequest,
    TokenStep,
    plain_request,
)

Json = dict[str, Any]


class _Generates(Protocol):
    def generate(self, request: GenerationRequest) -> AsyncGenerator[EngineItem, None]: ...


class _Form(Protocol):
    """How one API writes an answer."""

    def whole(self, text: str, end: Finished) -> Json: ...

    def begin(self) -> bytes: ...

    def token(self, text: str) -> bytes: ...

    def end(self, text: str, end: Finished) -> bytes: ...


def stub_app(engine: _Generates, entry: ChainEntry) -> Starlette:
    """Return the HTTP application of a stub engine with that chain entry."""

    async def answer(http: Request) -> Response:
        body = orjson.loads(await http.body())
        path, request_id = http.url.path, http.headers.get("x-request-id", "stub")
        if not any(key in body for key in ("messages", "input", "prompt")):
            raise EngineError("bad_request", "no messages, no input, no prompt", status=400, retryable=False)
        request = _request(body, request_id, entry)
        if path.endswith("/count_tokens"):
            return JSONResponse({"input_tokens": sum(len(message.content.split()) + 2 for message in request.messages)})
        form = _form(path, body, request_id)
        items = _watched(engine.generate(request))
        await anext(items)  # `Admitted`, or a refusal is raised, before the response begins
        if body.get("stream"):
            return StreamingResponse(_events(form, items), media_type="text/event-stream")
        texts: list[str] = []
        async for item in items:
            if isinstance(item, TokenStep):
                texts += [token.text for token in item.tokens]
            elif isinstance(item, Finished):
                end = item
        return JSONResponse(form.whole("".join(texts), end))

    return Starlette(
        routes=[Route(path, answer, methods=["POST"]) for path in _PATHS],
        exception_handlers={EngineError: _refusal},
    )


_PATHS: Final = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
)


def _request(body: Json, request_id: str, entry: ChainEntry) -> GenerationRequest:
    messages = conversation(body)
    if tools := other_text(body):
        messages = (Message(role="system", content=tools), *messages)
    limits = (body.get(key) for key in ("max_completion_tokens", "max_output_tokens", "max_tokens"))
    spec, category = SpecParams.from_arguments(body.get("vllm_xargs") or {})
    resolved, _ = spec.resolve(entry.speculation)
    plain = plain_request(request_id, messages, next((int(limit) for limit in limits if limit), 64))
    return replace(plain, spec=resolved, category=category)


async def _refusal(http: Request, error: Exception) -> Response:
    """Answer in the forms of vLLM's errors."""
    assert isinstance(error, EngineError)
    message = error.message
    if error.code == "prompt_too_long":
        message = f"{message}, the model's maximum context length"
    inner: Json = {"message": message, "type": "BadRequestError" if error.status < 500 else "InternalServerError"}
    if http.url.path.startswith("/v1/messages"):
        return JSONResponse({"type": "error", "error": inner}, error.status)
    return JSONResponse({"error": inner | {"param": None, "code": error.status}}, error.status)


async def _watched(items: AsyncGenerator[EngineItem, None]) -> AsyncIterator[EngineItem]:
    run = current_run()
    async for item in items:
        if run is not None:
            if isinstance(item, Admitted):
                run.admitted(len(item.prompt_ids) // ID_BYTES)
            elif isinstance(item, Finished):
                run.finished(item)
            else:
                run.token(len(item.ids), item.busy_s)
        yield item


async def _events(form: _Form, items: AsyncIterator[EngineItem]) -> AsyncIterator[bytes]:
    yield form.begin()
    texts: list[str] = []
    async for item in items:
        if isinstance(item, TokenStep):
            texts += [token.text for token in item.tokens]
            yield b"".join(form.token(token.text) for token in item.tokens)
        elif isinstance(item, Finished):
            yield form.end("".join(texts), item)


def _form(path: str, body: Json, request_id: str) -> _Form:
    if path == "/v1/responses":
        return _ResponsesForm(request_id, body["model"])
    if path == "/v1/messages":
        return _MessagesForm(request_id, body["model"])
    usage = bool((body.get("stream_options") or {}).get("include_usage"))
    return _CompletionForm(request_id, body["model"], path.endswith("/chat/completions"), usage)


@dataclass(frozen=True, slots=True)
class _CompletionForm:
    """Chat, or completions."""

    request_id: str
    model: str
    chat: bool
    usage: bool
    """Whether a stream ends with a usage chunk."""

    def whole(self, text: str, end: Finished) -> Json:
        return self._body(text, end.finish_reason, stream=False) | _usage(end)

    def begin(self) -> bytes:
        return b""

    def token(self, text: str) -> bytes:
        return _data(self._body(text, None, stream=True))

    def end(self, text: str, end: Finished) -> bytes:
        last = self._body("", end.finish_reason, stream=True)
        usage = _data(last | {"choices": []} | _usage(end)) if self.usage else b""
        return _data(last) + usage + b"data: [DONE]\n\n"

    def _body(self, text: str, finish: str | None, *, stream: bool) -> Json:
        part = {"role": "assistant", "content": text}
        choice: Json = {"index": 0, "finish_reason": finish}
        choice |= {("delta" if stream else "message"): part} if self.chat else {"text": text}
        kind = ("chat.completion" + (".chunk" if stream else "")) if self.chat else "text_completion"
        return {"id": self.request_id, "object": kind, "created": 0, "model": self.model, "choices": [choice]}


@dataclass(frozen=True, slots=True)
class _ResponsesForm:
    request_id: str
    model: str

    def whole(self, text: str, end: Finished) -> Json:
        short = end.finish_reason == "length"
        usage = {
            "input_tokens": end.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": end.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": end.prompt_tokens + end.completion_tokens,
        }
        return self._response("incomplete" if short else "completed", [self._item(text)]) | {
            "usage": usage,
            "incomplete_details": {"reason": "max_output_tokens"} if short else None,
        }

    def begin(self) -> bytes:
        place = {"item_id": "msg_0", "output_index": 0, "content_index": 0}
        empty = self._item("") | {"content": [], "status": "in_progress"}
        return (
            _event("response.created", {"response": self._response("in_progress", [])})
            + _event("response.output_item.added", {"output_index": 0, "item": empty})
            + _event("response.content_part.added", place | {"part": _text_part("")})
        )

    def token(self, text: str) -> bytes:
        place = {"item_id": "msg_0", "output_index": 0, "content_index": 0}
        return _event("response.output_text.delta", place | {"delta": text, "logprobs": []})

    def end(self, text: str, end: Finished) -> bytes:
        place = {"item_id": "msg_0", "output_index": 0, "content_index": 0}
        whole = self.whole(text, end)
        return (
            _event("response.output_text.done", place | {"text": text, "logprobs": []})
            + _event("response.content_part.done", place | {"part": _text_part(text)})
            + _event("response.output_item.done", {"output_index": 0, "item": self._item(text)})
            + _event(f"response.{whole['status']}", {"response": whole})
        )

    def _item(self, text: str) -> Json:
        content = [_text_part(text)]
        return {"id": "msg_0", "type": "message", "role": "assistant", "status": "completed", "content": content}

    def _response(self, status: str, output: list[Json]) -> Json:
        settings = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        about = {"id": f"resp_{self.request_id}", "object": "response", "created_at": 0, "model": self.model}
        return about | settings | {"status": status, "output": output}


@dataclass(frozen=True, slots=True)
class _MessagesForm:
    request_id: str
    model: str

    def whole(self, text: str, end: Finished) -> Json:
        return self._message([{"type": "text", "text": text}], end.prompt_tokens, end.completion_tokens) | _stop(end)

    def begin(self) -> bytes:
        block = {"index": 0, "content_block": {"type": "text", "text": ""}}
        return _event("message_start", {"message": self._message([], 0, 0)}) + _event("content_block_start", block)

    def token(self, text: str) -> bytes:
        return _event("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": text}})

    def end(self, text: str, end: Finished) -> bytes:
        usage = {"input_tokens": end.prompt_tokens, "output_tokens": end.completion_tokens}
        return (
            _event("content_block_stop", {"index": 0})
            + _event("message_delta", {"delta": _stop(end), "usage": usage})
            + _event("message_stop", {})
        )

    def _message(self, content: list[Json], prompt: int, completion: int) -> Json:
        about = {"id": f"msg_{self.request_id}", "type": "message", "role": "assistant", "model": self.model}
        usage = {"input_tokens": prompt, "output_tokens": completion}
        return about | {"content": content, "stop_reason": None, "stop_sequence": None, "usage": usage}


def _stop(end: Finished) -> Json:
    reason = "max_tokens" if end.finish_reason == "length" else "end_turn"
    return {"stop_reason": reason, "stop_sequence": None}


def _text_part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": []}


def _usage(finished: Finished) -> Json:
    """Return `usage`, and `metrics` in the form of vLLM's."""
    prompt, completion = finished.prompt_tokens, finished.completion_tokens
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {"usage": usage, "metrics": {"speculative_decoding": used_spec(finished.spec)}}


def _data(body: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


def _event(kind: str, data: Mapping[str, Any]) -> bytes:
    return f"event: {kind}\n".encode() + _data({"type": kind, "sequence_number": 0, **data})
