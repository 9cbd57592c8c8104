"""One `/api/inference` request from its plan to its last event."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import InitVar, dataclass, field
from typing import Final

from starlette.responses import Response

from router.agent.result import AgentResult
from router.escalation import Move, comparable
from router.plan import Plan, plan_on
from router.request import InferenceRequest
from router.runs.summary import HandedOver, RunReport
from router.signs import NO_SIGNS
from router.trace_steps import TraceStep
from serve_app.api.answer_parts import AnswerParts
from serve_app.api.errors import ApiError, error_data, incomplete_stream, internal_error, overloaded, raise_if_late
from serve_app.api.escalation import TAKEN_WITHIN_S, AnswerWatch, Escalated
from serve_app.api.explanation import Explanation
from serve_app.api.planning import generation_request
from serve_app.api.request_record import CLIENT_LEFT, OK, Delivered, RequestRecord, unreported_s
from serve_app.api.routing import answer_headers
from serve_app.api.sse import (
    PING,
    PING_EVERY_S,
    STATUS_EVERY_S,
    config_data,
    event,
    metrics_data,
    reasoning_event,
    resumed_data,
    status_data,
    trace_event,
)
from serve_app.api.stream_response import SSE_HEADERS, StreamResponse
from serve_app.config import AppConfig
from serve_app.engine.interface import Admitted, Finished, TokenBatch
from serve_app.pool.run_reports import run_report
from serve_app.pool.view import PoolView
from serve_app.transport.resuming import Resumed, ResumingStream
from serve_app.transport.stream import Tick

logger = logging.getLogger("ray.serve")

ADMISSION_WAIT_S: Final = 0.5
"""A warm tier may take so long to accept or refuse a request before the response begins without it, s. A refusal within
that time is an HTTP error, a later one an `error` event."""


@dataclass(slots=True)
class InferenceStream:
    """The stream of one request: `respond` waits for the engine to admit it, then its `events` follow.

    Args:
        request_id: for `config`, `done` and `error`.
        request: from the client.
        plan: the router's decision.
        items: from the plan's tier; closed with `events`.
        config: limits, and the profile.
        pool: knows why a cold tier is not ready yet.
        arrived_s: monotonic clock at arrival, s.
        report: takes the report of a finished run. Requests with `mock` say nothing about a tier and are not reported.
        agent: its result, or its explanation that is still to come, which is closed with `events`; None: no agent.
        decision_id: under which the decision record can be read.
        record: takes how it ended.
        watch: over the answer; None: it is not watched.
    """

    request_id: str
    request: InferenceRequest
    plan: Plan
    items: InitVar[ResumingStream]
    config: AppConfig
    pool: PoolView
    arrived_s: float
    report: Callable[[RunReport | HandedOver], None] | None = None
    agent: AgentResult | Explanation | None = None
    decision_id: str | None = None
    record: RequestRecord = field(default_factory=RequestRecord)
    watch: AnswerWatch | None = None
    parts: AnswerParts = field(init=False)
    _billed: bool = field(default=False, init=False)
    _admitted_s: float | None = field(default=None, init=False)
    _first_token_s: float | None = field(default=None, init=False)
    _last_token_s: float = field(default=0.0, init=False)
    _last_status_s: float = field(init=False)
    _agent_result: AgentResult | None = field(init=False)

    def __post_init__(self, items: ResumingStream) -> None:
        self.parts = AnswerParts(items, self._did_since)
        self._last_status_s = self.arrived_s
        self._agent_result = self.agent if isinstance(self.agent, AgentResult) else None

    async def respond(self) -> Response:
        """Return the response, or refuse the request while it can still be an HTTP error.

        Raises:
            ApiError: the engine or the tier's queue refused the request.
        """
        await self.admit()
        self._count()
        headers = answer_headers(self.plan, self.request_id, self.decision_id)
        headers["content-type"] = "text/event-stream; charset=utf-8"
        return StreamResponse(self.events(), 200, SSE_HEADERS | headers, self.aclose)

    async def admit(self) -> None:
        """Wait a moment for the engine to admit the request. A cold tier's `status` events begin at once.

        Raises:
            ApiError: the engine or the tier's queue refused the request.
        """
        try:
            warm = self.plan.warm or self.request.mock
            # Without a wait, this still raises the refusal of a full tier.
            if isinstance(await self.parts.items.get(ADMISSION_WAIT_S if warm else 0), Admitted):
                self._admitted_s = time.monotonic()
        except BaseException:
            await self.aclose()
            raise

    async def events(self) -> AsyncIterator[bytes]:
        """The SSE events, ending with exactly one of `done` and `error`."""
        try:
            yield self._opening()
            async for piece in self._with_explanation(self._body()):
                yield piece
        except ApiError as error:
            yield self._failed(error)
        except Exception:
            logger.exception("request %s failed", self.request_id)
            yield self._failed(internal_error())
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Close the engine's stream and the agent's explanation, also if `events` never began."""
        self._count()
        self.record.delivered = Delivered(self.parts.delivered, self.parts.busy_s, self._first_token_s)
        async with contextlib.AsyncExitStack() as closing:
            closing.push_async_callback(self._bill)
            if self._explanation is not None:
                closing.push_async_callback(self._explanation.aclose)
            closing.push_async_callback(self.parts.drop_asked)
            if self.watch is not None:
                closing.callback(self.watch.close)
            closing.push_async_callback(self.parts.items.aclose)

    async def _bill(self) -> None:
        """Note what engines did that no `metrics` tells."""
        if self.request.mock or self._billed:
            return
        self._billed = True
        unbilled = list(self.parts.refused)
        if self.record.metrics is None:
            unbilled += await self.parts.cut(self.record.code or CLIENT_LEFT)
            self.record.estimated = bool(unbilled)
        self.record.unbilled = unbilled

    def _did_since(self, items: ResumingStream, quiet_s: float) -> float:
        """Estimate what an engine did for a stream since its last item, s."""
        return unreported_s(quiet_s, self.pool.observation.tier(items.tier), waits=not items.delivered)

    def _count(self) -> None:
        """Note the tokens that were taken so far."""
        self.record.tokens.saw(self.parts.prompt_tokens, self.parts.made)

    def _opening(self) -> bytes:
        stub = self.request.mock or self.config.inference_mode == "mock"
        pieces = [event("config", config_data(self.request_id, self.plan, self.config, stub, self.decision_id))]
        pieces += [trace_event(step) for step in self.plan.trace]
        if self.request.reasoning and self._explanation is None:
            text = self._agent_result.text if self._agent_result else None
            pieces.append(reasoning_event(self.plan, text, "agent"))
        if not self.plan.warm and not self.request.mock:
            pieces.append(self._status())
        return b"".join(pieces)

    async def _body(self) -> AsyncIterator[bytes]:
        while True:
            item = await self.parts.items.get(PING_EVERY_S)
            self._count()
            if isinstance(item, TokenBatch):
                self._raise_if_late()
                yield await self._delivered(item)
                async for piece in self._escalate():
                    yield piece
            elif isinstance(item, Resumed):
                if item.tokens:
                    yield event("status", resumed_data(time.monotonic() - self.arrived_s, item.message))
            elif isinstance(item, Tick):
                self._raise_if_late()
                if self._hopeless:
                    yield self._status()  # with the reason, before the error
                    raise self.pool.unavailable(self.plan.tier)
                yield self._sign_of_life()
            elif isinstance(item, Admitted):
                if self._first_token_s is None:
                    self._admitted_s = time.monotonic()
            elif isinstance(item, Finished):
                if self._explanation is not None and (result := await self._explanation.last()) is not None:
                    yield self._explained(result)
                yield self._closing(item)
                return
            else:
                raise incomplete_stream()

    async def _delivered(self, first: TokenBatch) -> bytes:
        """Return all token events that arrived while the client was being written to, as one piece."""
        batches = [first]
        items = self.parts.items
        while isinstance(items.peek(), TokenBatch):
            batch = await items.get(0)
            assert isinstance(batch, TokenBatch)
            batches.append(batch)
        if self.watch is not None:
            for batch in batches:
                self.watch.saw(batch)
        events = b"".join([batch.events for batch in batches])
        if not events:  # a model's thoughts
            return self._sign_of_life()
        self._last_token_s = time.monotonic()
        if self._first_token_s is None:
            self._first_token_s = self._last_token_s
        return events

    async def _escalate(self) -> AsyncIterator[bytes]:
        """Go on with another tier, or advise it, if the watch says so."""
        if self.watch is None:
            return
        # A model that thinks may be in a loop before it answers.
        first_token_s = time.monotonic() if self._first_token_s is None else self._first_token_s
        move = self.watch.move(self.arrived_s, first_token_s, self.parts.items, self.pool.observation)
        if move is None:
            return
        refusal = ""
        if self.watch.applies:
            made = plan_on(move.to_tier, self.plan, self.request, self.pool.observation, self.config)
            try:
                async for ping in self._until_taken(made, move):
                    yield ping
            except ApiError as error:
                self.watch.refused(move.to_tier)
                refusal = f"{move.to_tier} does not go on with it: {error.message}"
        applied = self.watch.applies and not refusal
        rewrite = self.watch.rewrites(move)
        escalated = Escalated(move, self.plan.tier, self.watch.shown, rewrite, applied, refusal)
        self.record.escalated = escalated
        if applied:
            await self._hand_over(made, rewrite=rewrite)
            yield event("escalation", escalated.event())
        else:
            await self.parts.drop_asked()
            yield trace_event(TraceStep("escalate", escalated.trace(), 0.0))

    async def _until_taken(self, made: Plan, move: Move) -> AsyncIterator[bytes]:
        """Ask another tier to take the answer; ping until it has.

        The old tier goes on meanwhile: if this one does not take it, nothing is lost.

        Raises:
            ApiError: it does not.
        """
        assert self.watch is not None
        call = generation_request(self.request_id, self.request, made)
        asked = self.watch.ask(made.tier, self.watch.request(call, move, self.parts.items.delivered))
        self.parts.asked = asked
        taken_by_s = time.monotonic() + TAKEN_WITHIN_S
        while not isinstance(await asked.get(PING_EVERY_S), Admitted):
            if time.monotonic() > taken_by_s:
                raise overloaded(f"it has not taken it within {TAKEN_WITHIN_S:g} s")
            yield PING
        if self.parts.items.complete:
            raise overloaded("the answer has ended meanwhile")

    async def _hand_over(self, plan: Plan, *, rewrite: bool) -> None:
        """Let the tier that has taken the answer go on with it."""
        assert self.watch is not None
        await self.parts.hand_over(rewrite=rewrite)
        # Of an answer with more parts the signs are of the last one.
        if self.report is not None and len(self.parts.earlier) == 1:
            signs = comparable(self.watch.signs, self.plan)
            self.report(HandedOver(self.plan.tier, self.plan.classification.category, signs))
        self.watch.close()
        self.plan, self.watch = plan, None

    @property
    def _hopeless(self) -> bool:
        """Whether it is useless to wait for the tier."""
        waits = self._admitted_s is None and not self.request.mock
        return waits and self.pool.observation.tier(self.plan.tier).failed

    def _sign_of_life(self) -> bytes:
        """Return what a silent stream sends: a status at its intervals before the first token, else a ping."""
        status_due_s = self._last_status_s + STATUS_EVERY_S
        return PING if self._first_token_s or time.monotonic() < status_due_s else self._status()

    def _status(self) -> bytes:
        self._last_status_s = time.monotonic()
        state = self.pool.observation.tier(self.plan.tier)
        queued = state.warm or self.request.mock or self._admitted_s is not None
        return event("status", status_data(state, self._last_status_s - self.arrived_s, queued))

    @property
    def _explanation(self) -> Explanation | None:
        """Claude's explanation, if one is to come."""
        return self.agent if isinstance(self.agent, Explanation) else None

    async def _with_explanation(self, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The body, with the explanation in it as soon as it is ready.

        The explanation begins when it can delay no first token: with the piece after the first token's, or while a cold
        tier starts. Directly after the first token would be too early, because a server takes a piece before it sends
        it, and requests that arrived together get their first tokens together.
        """
        explanation = self._explanation
        if explanation is None:
            async for piece in body:
                yield piece
            return
        if not self.plan.warm:
            explanation.begin()
        first_is_out = False
        async for piece in body:
            yield piece
            if first_is_out:
                explanation.begin()
            first_is_out = self._first_token_s is not None
            if (result := explanation.take()) is not None:
                yield self._explained(result)

    def _explained(self, result: AgentResult) -> bytes:
        """Return the agent's trace step and the reasoning: the agent's, or the router's if the agent failed."""
        self._agent_result = result
        # The explanation is of the plan, whichever tier has gone on since.
        step = result.trace_step(self.parts.earlier[0].tier if self.parts.earlier else self.plan.tier)
        return trace_event(step) + reasoning_event(self.plan, result.text, "claude")

    def _failed(self, error: ApiError) -> bytes:
        self.record.code = error.code
        return event("error", error_data(error, self.request_id))

    def _closing(self, last: Finished) -> bytes:
        finished, legs = self.parts.whole(last), self.parts.legs
        metrics = metrics_data(
            self.plan,
            self.config,
            finished,
            arrived_s=self.arrived_s,
            admitted_s=self.arrived_s if self._admitted_s is None else self._admitted_s,
            first_token_s=self._first_token_s,
            ended_s=self._last_token_s or time.monotonic(),
            legs=legs,
        )
        escalated = self.record.escalated
        metrics["escalation"] = escalated.metrics() if escalated is not None else None
        if self._agent_result is not None:
            metrics["agent"] = self._agent_result.metrics()
        if not self.request.mock:
            self.record.finished(metrics, finished.completion_tokens)
            # A resumed answer took longer than the next one like it will.
            if self.report is not None and len(legs) == 1:
                signs = NO_SIGNS if self.watch is None else self.watch.signs
                self.report(run_report(self.plan, metrics, signs))
        self.record.code = OK
        return event("metrics", metrics) + event("done", {"request_id": self.request_id})

    def _raise_if_late(self) -> None:
        raise_if_late(time.monotonic() - self.arrived_s, self.config.limits.request_timeout_s)
