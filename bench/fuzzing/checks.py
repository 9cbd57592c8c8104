"""What every answer must be, whatever was sent: documented, whole, in its API's form, and silent about the inside."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from bench.fuzzing.case import Kind
from bench.fuzzing.exchange import Answer, Exchange
from bench.load.sse import EventSplitter
from bench.reporting.report import REPOSITORY

_DOCUMENT: Final = REPOSITORY / "docs" / "api.md"
_ROW: Final = re.compile(r"^\| ((?:`[a-z_]+`(?:, )?)+) \| [0-9]", re.MULTILINE)
_INSIDE: Final = (
    b"Traceback (most recent",
    b"site-packages",
    b'.py"',
    b"ray::",
    b"/tmp/plb-",
    str(REPOSITORY).encode(),
)
"""What an error would show of the inside."""
_PROXYS_OWN: Final = re.compile(rb"<html><body><h1>(400|422) [A-Z][^<>]*</h1>\n[^<>]*\n</body></html>\n")
"""HAProxy's answers to what it cannot read as HTTP. It takes no other text from its configuration."""
_NO_HTTP: Final[tuple[Kind, ...]] = ("odd request", "broken HTTP")
"""Kinds of requests that may be no HTTP."""
_NO_FORM: Final = frozenset(("/health", "/ping", "/readyz"))
"""Routes whose 503 is not an error."""
_DONE: Final = "[DONE]"
_LAST: Final = {
    "/api/inference": ("done", "error"),
    "/v1/messages": ("message_stop", "error"),
    "/v1/responses": ("response.completed", "response.incomplete", "response.failed", "error"),
}
"""Types of the event that ends a stream; on the other routes it is `[DONE]`."""


def documented_codes(document: Path = _DOCUMENT) -> frozenset[str]:
    """Return the error codes of docs/api.md."""
    rows = _ROW.findall(document.read_text(encoding="utf-8").partition("\n### Error codes\n")[2])
    return frozenset(code for codes in rows for code in re.findall("[a-z_]+", codes))


def faults(done: Exchange, codes: Collection[str]) -> Iterator[str]:
    """Yield what is wrong with an exchange.

    Args:
        done: it.
        codes: those that are documented.
    """
    case = done.case
    if done.hung:
        yield "no end in time"
        return
    if case.other_protocol:
        return
    if done.unreadable:
        yield f"not HTTP: {done.unreadable}"
        return
    if case.must_answer and not done.answers:
        yield "closed without an answer"
    if len(done.answers) > case.answers:
        yield f"{len(done.answers)} answers to {case.answers} requests"
    for answer in done.answers:
        if case.leaves_after is None and not case.half_closes and not answer.complete:
            yield f"{answer.status}: cut off"
        yield from _faults(answer, done, codes)


def _faults(answer: Answer, done: Exchange, codes: Collection[str]) -> Iterator[str]:
    case, status = done.case, answer.status
    if status >= 500 and status != 503:
        yield f"{status} {_text(answer)}"
        return
    if case.must_serve and 400 <= status < 503:
        yield f"{status}, and not served: {_text(answer)}"
    if case.must_refuse and status < 400:
        yield f"{status}, and not refused"
    if case.kind in _NO_HTTP and (own := _PROXYS_OWN.fullmatch(answer.body)) and int(own[1]) == status:
        return
    if len(answer.all(b"x-request-id")) != 1 and not _of_the_proxy(answer):
        yield f"{status}: {len(answer.all(b'x-request-id'))} request ids"
    if status >= 400:
        yield from (f"{status}: shows {mark.decode()}" for mark in _INSIDE if mark in answer.body)
        if answer.complete and case.method != "HEAD" and case.path not in _NO_FORM:
            yield from _error_faults(answer, case.path, codes)
    elif answer.complete and answer.one(b"content-type").startswith("text/event-stream"):
        yield from _stream_faults(answer.body, case.path)
    elif answer.complete and answer.body and answer.one(b"content-type").startswith("application/json"):
        yield from () if isinstance(_parsed(answer.body), dict) else (f"{status}: the body is no JSON object",)


def _error_faults(answer: Answer, path: str, codes: Collection[str]) -> Iterator[str]:
    """Yield what is wrong with an error: `error` has a documented `code`, a `message`, and what its API's SDKs read."""
    body, status = _parsed(answer.body), answer.status
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        yield f"{status}: no error in JSON: {_text(answer)}"
        return
    code = error.get("code")
    of_vllm = path.startswith("/v1") and code == status
    if code not in codes and not of_vllm:
        yield f"{status}: code {code!r} is not documented"
    if not isinstance(error.get("type"), str):
        yield f"{status} {code}: no type"
    if _of_the_proxy(answer):
        return
    if not of_vllm and (not isinstance(error.get("retryable"), bool) or not error.get("request_id")):
        yield f"{status} {code}: no retryable or no request_id"
    if status == 503 and not answer.one(b"retry-after"):
        yield f"{status} {code}: no Retry-After"
    if path.startswith("/v1/messages") and body.get("type") != "error":
        yield f"{status} {code}: not in Anthropic's form"


def _of_the_proxy(answer: Answer) -> bool:
    """Return whether HAProxy itself answered: it gives no ids."""
    return not answer.all(b"x-request-id") and b'"request_id"' not in answer.body and answer.one(b"server") == ""


def _stream_faults(body: bytes, path: str) -> Iterator[str]:
    kinds = [_DONE if payload == _DONE.encode() else _kind(payload) for payload in EventSplitter().feed(body)]
    if not body.endswith(b"\n\n") or None in kinds:
        yield "a stream with something that is no event"
        return
    ends = [place for place, kind in enumerate(kinds) if kind in _LAST.get(path, (_DONE,))]
    if ends != [len(kinds) - 1]:
        yield f"a stream of {len(kinds)} events with ends at {ends}"


def _kind(payload: bytes) -> str | None:
    """Return the type of an event; empty: it has none; None: it is no event."""
    event = _parsed(payload)
    return str(event.get("type", "")) if isinstance(event, dict) else None


def _parsed(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None


def _text(answer: Answer) -> str:
    return answer.body[:120].decode(errors="replace")
