"""The response to a `/v1` request: the engine's own, passed on as it arrives, and the report of its run."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from starlette.responses import Response

from router.plan import Plan
from router.runs.summary import RunReport
from serve_app.api.errors import (
    DONE,
    RETRY_LATER,
    ApiError,
    ErrorForm,
    error_body,
    error_events,
    incomplete_stream,
    raise_if_late,
)
from serve_app.api.request_record import CLIENT_LEFT, OK, RequestRecord, unreported_s
from serve_app.api.routing import answer_headers
from serve_app.api.sse import PING, PING_EVERY_S, STATUS_EVERY_S, metrics_data
from serve_app.api.stream_response import SSE_HEADERS, StreamResponse
from serve_app.api.v1.usage import used, with_used
from serve_app.config import AppConfig
from serve_app.engine.interface import HttpRun, Leg
from serve_app.pool.run_reports import run_report
from serve_app.pool.view import PoolView
from serve_app.transport.asgi_call import ResponseStart
from serve_app.transport.resuming import RepeatingStream
from serve_app.transport.stream import TICK

_HOP_HEADERS: Final = frozenset((b"content-length", b"transfer-encoding", b"connection", b"date", b"server"))
"""Headers that every hop sets for itself. The engine's other response headers go to the client."""
LOST_REPLICA: Final = "replica_lost"
"""How the part of a replica ended that was lost before the answer began."""
TOO_LONG: Final = "maximum context length"
"""In every message by which vLLM refuses a prompt that is too long. On `/v1/messages` nothing else tells it."""


@dataclass(slots=True)
class V1Exchange:
    """One `/v1` request from its call to its last byte: `respond` returns the response.

    Args:
        form: of errors.
        plan: who answers, and what is planned about speculation, for response headers and the report.
        request_id: for error bodies and the response header.
        streaming: whether the client requested SSE.
        items: the replica's response.
        config: limits, and the profile.
        pool: knows when waiting for a cold tier is useless.
        arrived_s: monotonic clock at arrival, s.
        report: takes the report of a finished run; a count of tokens is none.
        decision_id: under which the decision record can be read; None: it has none.
        record: takes how it ended.
    """

    form: ErrorForm
    plan: Plan
    request_id: str
    streaming: bool
    items: RepeatingStream
    config: AppConfig
    pool: PoolView
    arrived_s: float
    report: Callable[[RunReport], None]
    decision_id: str | None
    record: RequestRecord = field(default_factory=RequestRecord)
    _closed: bool = field(default=False, init=False)

    async def aclose(self) -> None:
        """Stop the engine, and note what it did if that is in no `metrics`."""
        await self.items.aclose()
        if self._closed:
            return
        self._closed, did = True, self.items.progress
        unbilled = [(each.completion_tokens, each.busy_s, LOST_REPLICA) for each in self.items.earlier]
        if self.record.metrics is None and did.prompt_tokens:
            tier = self.pool.observation.tier(self.plan.tier)
            read = self.items.read
            since_s = unreported_s(self.items.quiet_s, tier, waits=not read.completion_tokens)
            busy_s = max(did.busy_s, read.busy_s + since_s)
            unbilled.append((did.completion_tokens, busy_s, self.record.code or CLIENT_LEFT))
            self.record.estimated = True
        self.record.unbilled = [Leg(self.plan.tier, self.plan.entry.name, *each) for each in unbilled]

    async def respond(self) -> Response:
        """Return the engine's response; for a stream that must wait long, one that pings until it comes.

        Raises:
            ApiError: the tier cannot serve the request; or in auto mode the prompt is too long for its engine
                (`prompt_too_long`), so a tier with more room may be called.
        """
        try:
            start = await self._start(STATUS_EVERY_S)
            while start is None and not self.streaming:
                start = await self._start(STATUS_EVERY_S)
            if start is None:
                return StreamResponse(self._late_stream(), 200, self._headers("text/event-stream"), self.aclose)
            extra = self._headers(None) | (RETRY_LATER if start.status == 503 else {})
            replaced = _HOP_HEADERS | {key.encode() for key in extra}
            headers = [pair for pair in start.headers if pair[0].lower() not in replaced]
            headers += [(key.encode(), value.encode()) for key, value in extra.items()]
            body = self._body() if start.status < 400 else _once(await self._refusal(start.status))
            return StreamResponse(body, start.status, headers, self.aclose)
        except BaseException:
            await self.aclose()
            raise

    async def _start(self, wait_s: float) -> ResponseStart | None:
        """Return the response's start; None if it does not come in time."""
        item = await self.items.get(wait_s)
        if isinstance(item, ResponseStart):
            return item
        if item is not TICK:
            raise incomplete_stream()
        self.pool.raise_if_failed(self.plan.tier)
        self._raise_if_late()
        return None

    async def _body(self) -> AsyncIterator[bytes]:
        took: Mapping[str, Any] | None = None
        try:
            while (item := await self.items.get(PING_EVERY_S)) is not None:
                self._raise_if_late()
                if isinstance(item, bytes):
                    yield item if took is None else with_used(item, took)
                elif isinstance(item, HttpRun):
                    took = used(self.plan, self._report(item))
                elif item is TICK and self.streaming:
                    yield PING
            self.record.code = OK
        except ApiError as error:
            self.record.code = error.code
            if not self.streaming:
                raise  # which cuts the connection: a part of the body has been sent
            yield error_events(error, self.request_id, self.form)
        finally:
            await self.aclose()

    async def _refusal(self, status: int) -> bytes:
        """Return the body of an error response: vLLM's own, which is in OpenAI's form, or the same in Anthropic's.

        Raises:
            ApiError: the prompt is too long, and the client left the choice of the tier to the router.
        """
        body = await self._whole_body()
        error = _error_of(body, status)
        self.record.code = error.code
        if status == 400 and self.plan.mode == "auto" and TOO_LONG in error.message:
            raise ApiError("prompt_too_long", error.message, status=status)
        return body if self.form != "anthropic" else orjson.dumps(error_body(error, self.request_id, self.form))

    async def _whole_body(self) -> bytes:
        return b"".join([piece async for piece in self._body() if piece != PING])

    async def _late_stream(self) -> AsyncIterator[bytes]:
        """The body after an early 200: pings, then what the engine answers, also if that is an error."""
        try:
            yield PING
            while (start := await self._start(PING_EVERY_S)) is None:
                yield PING
            if start.status == 200:
                async for piece in self._body():
                    yield piece
                return
            body = await self._whole_body()
            self.record.code = _error_of(body, start.status).code
            if self.form == "openai":
                # An error body is one line of JSON. SDKs raise it as an SSE `data` line.
                yield b"data: " + body.replace(b"\n", b" ") + b"\n\n" + DONE
            else:
                yield error_events(_error_of(body, start.status), self.request_id, self.form)
        except ApiError as error:
            self.record.code = error.code
            yield error_events(error, self.request_id, self.form)
        finally:
            await self.aclose()

    def _headers(self, media_type: str | None) -> dict[str, str]:
        headers = answer_headers(self.plan, self.request_id, self.decision_id)
        if self.streaming:
            headers |= SSE_HEADERS
        return headers | ({"content-type": media_type} if media_type else {})

    def _report(self, run: HttpRun) -> Mapping[str, Any]:
        """Report a run with the times that its client saw, as the replica says how long ago they were; return
        its metrics."""
        now_s = time.monotonic()
        metrics = metrics_data(
            self.plan,
            self.config,
            run.finished,
            arrived_s=self.arrived_s,
            admitted_s=max(self.arrived_s, now_s - run.since_admitted_s),
            first_token_s=None if run.since_first_token_s is None else now_s - run.since_first_token_s,
            ended_s=now_s,
        )
        self.report(run_report(self.plan, metrics))
        self.record.finished(metrics, run.completion_tokens)
        return metrics

    def _raise_if_late(self) -> None:
        raise_if_late(time.monotonic() - self.arrived_s, self.config.limits.request_timeout_s)


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _error_of(body: bytes, status: int) -> ApiError:
    """Return the engine's error response as an error."""
    try:
        message = orjson.loads(body)["error"]["message"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message = body.decode(errors="replace")
    code = "bad_request" if status < 500 else "engine_failed"
    return ApiError(code, str(message), status=status, retryable=status >= 500)
