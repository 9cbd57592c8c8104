"""The way of one `/api/inference` request, from plan to terminal event."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from router.agent.report import AgentReport
from router.plan import Plan
from router.request import InferenceRequest
from router.runs.summary import RunReport
from serve_app.api.advisor import AgentPart
from serve_app.api.errors import ApiError, Failure, error_data, raise_if_late
from serve_app.api.explanation import Explanation, Told
from serve_app.api.events import PING, config_data, event, metrics_data, reasoning_event, trace_event
from serve_app.config import AppConfig
from serve_app.engine.deployment import StreamItem
from serve_app.engine.interface import Admitted, Finished, GenerationRequest
from serve_app.pool.run_reports import run_report
from serve_app.pool.view import PoolView
from serve_app.transport.stream import ItemStream, Tick
from sustainability.factors import Factors

logger = logging.getLogger("ray.serve")


def generation_request(request_id: str, wish: InferenceRequest, plan: Plan) -> GenerationRequest:
    """What the tier's engine is asked, from the client's wish and the plan."""
    return GenerationRequest(
        request_id=request_id,
        messages=wish.chat(),
        max_tokens=plan.sampling.max_tokens,
        max_tokens_is_wish=wish.max_tokens is not None,
        temperature=plan.sampling.temperature,
        top_p=plan.sampling.top_p,
        seed=wish.seed,
        stop=wish.stop or (),
        logprobs=wish.logprobs,
        spec=plan.spec,
        category=plan.classification.category,
    )


@dataclass(slots=True)
class InferenceStream:
    """One request's stream: `admit` before the response begins, then `events`.

    Args:
        request_id: goes into `config`, `done` and `error`.
        wish: the validated request.
        plan: the router's decision.
        items: the engine's items; closed with `events`.
        config: limits and intervals.
        pool: tells why a cold tier is not there yet.
        factors: for the `metrics` event.
        arrived_s: monotonic clock at arrival, s.
        report: takes what a finished request was like; None: nobody wants to know. Requests for the stub engine
            (`mock`) tell nothing of the tier and are not reported.
        agent: the agent's part in the plan; its explanation is closed with `events`.
    """

    request_id: str
    wish: InferenceRequest
    plan: Plan
    items: ItemStream[StreamItem]
    config: AppConfig
    pool: PoolView
    factors: Factors
    arrived_s: float
    report: Callable[[RunReport], None] | None = None
    agent: AgentPart | None = None
    _early: list[StreamItem] = field(default_factory=list)
    _admitted_s: float | None = None
    _first_token_s: float | None = None
    _last_token_s: float = 0.0
    _last_status_s: float = 0.0
    _agent_report: AgentReport | None = None

    def __post_init__(self) -> None:
        self._last_status_s = self.arrived_s
        self._agent_report = self.agent.report if self.agent else None

    @property
    def _explanation(self) -> Explanation | None:
        """Claude's explanation, where one is to come."""
        return self.agent.explanation if self.agent else None

    @property
    def _stub(self) -> bool:
        return self.wish.mock or self.config.inference_mode == "mock"

    async def admit(self) -> None:
        """Wait a moment for the engine to take the request, so that a refusal can be an HTTP error.

        A cold tier is not waited for: its `status` events begin at once.

        Raises:
            ApiError: the engine or the tier's queue refused the request.
        """
        try:
            # A cold tier that is full has said so already.
            warm = self.plan.warm or self.wish.mock
            first = await self.items.get(self.config.limits.admission_wait_s if warm else 0)
            if isinstance(first, Failure):
                raise first.as_api_error()
            if isinstance(first, Admitted):
                self._note_admission()
                self._early.append(first)
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
            yield event("error", error_data(error, self.request_id))
        except Exception:
            logger.exception("request %s failed", self.request_id)
            unexpected = ApiError("internal_error", "the ingress failed", status=500, retryable=True)
            yield event("error", error_data(unexpected, self.request_id))
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Close the engine's stream and the agent's explanation, also when `events` never began."""
        try:
            await self.items.aclose()
        finally:
            if self._explanation is not None:
                await self._explanation.aclose()

    def _opening(self) -> bytes:
        pieces = [event("config", config_data(self.request_id, self.plan, self.config, self._stub))]
        pieces += [trace_event(step) for step in self.plan.trace]
        if self.wish.reasoning and self._explanation is None:
            words = self.agent.text if self.agent else None
            pieces.append(reasoning_event(self.plan, words, "agent"))
        if not self.plan.warm and not self.wish.mock:
            pieces.append(self._status())
        return b"".join(pieces)

    async def _body(self) -> AsyncIterator[bytes]:
        while True:
            item = await self._next()
            if isinstance(item, bytes):
                self._give_up_if_late()
                self._last_token_s = time.monotonic()
                if self._first_token_s is None:
                    self._first_token_s = self._last_token_s
                yield await self._joined(item)
            elif isinstance(item, Tick):
                self._give_up_if_late()
                if self._hopeless:
                    yield self._status()  # the reason, as the last word before the error
                    raise self.pool.unavailable(self.plan.tier)
                yield self._sign_of_life()
            elif isinstance(item, Admitted):
                self._note_admission()
            elif isinstance(item, Failure):
                raise item.as_api_error()
            elif isinstance(item, Finished):
                if self._explanation is not None and (told := await self._explanation.last()) is not None:
                    yield self._told(told)
                yield self._closing(item)
                return
            else:
                raise ApiError("stream_cut", "the engine's stream ended early", status=502, retryable=True)

    async def _with_explanation(self, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The body, with the explanation in it as soon as it is there.

        It is begun when no first token can be slower for it: with the piece after the first token's, or while a cold
        tier starts. Right behind the first token would be too early: a server takes a piece before it sends it, and
        requests that came together get their first tokens together.
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
            if (told := explanation.take()) is not None:
                yield self._told(told)

    def _told(self, told: Told) -> bytes:
        """What the agent said, or why it did not, as it comes: its step of the trace and the reasoning."""
        self._agent_report = told.report
        step = told.report.trace_step({"tier": self.plan.tier})
        return trace_event(step) + reasoning_event(self.plan, told.text, "claude")

    async def _joined(self, first: bytes) -> bytes:
        """The token events that have come while the client was being written to, as one piece."""
        pieces = [first]
        while isinstance(self.items.peek(), bytes):
            piece = await self.items.get(0)
            assert isinstance(piece, bytes)
            pieces.append(piece)
        return b"".join(pieces)

    async def _next(self) -> StreamItem | Tick | None:
        if self._early:
            return self._early.pop(0)
        relay = self.config.relay
        wait_s = relay.ping_every_s if self._first_token_s else min(relay.ping_every_s, relay.status_every_s)
        return await self.items.get(wait_s)

    def _note_admission(self) -> None:
        self._admitted_s = time.monotonic()

    def _give_up_if_late(self) -> None:
        raise_if_late(time.monotonic() - self.arrived_s, self.config.limits.request_timeout_s)

    @property
    def _hopeless(self) -> bool:
        """Whether waiting for the tier is useless."""
        waits = self._admitted_s is None and not self.wish.mock
        return waits and self.pool.observation.tier(self.plan.tier).failed

    def _sign_of_life(self) -> bytes:
        """What a silent stream says: its status while it waits for the first token, a ping in between and after."""
        status_due_s = self._last_status_s + self.config.relay.status_every_s
        return PING if self._first_token_s or time.monotonic() < status_due_s else self._status()

    def _status(self) -> bytes:
        self._last_status_s = time.monotonic()
        waited_s = self._last_status_s - self.arrived_s
        state = self.pool.observation.tier(self.plan.tier)
        if state.warm or self.wish.mock or self._admitted_s is not None:
            data = {"state": "queued", "waited_s": round(waited_s, 3), "estimate_s": state.queue_wait_ms / 1000}
        else:
            name = "loading" if state.starting else "provisioning"
            estimate_s = max(0.0, state.cold_start_s - waited_s)
            data = {"state": name, "waited_s": round(waited_s, 3), "estimate_s": round(estimate_s, 3)}
        return event("status", data | {"reason": state.reason})

    def _closing(self, finished: Finished) -> bytes:
        ended_s = self._last_token_s or time.monotonic()
        metrics = metrics_data(
            self.plan,
            self.config,
            self.factors,
            finished,
            arrived_s=self.arrived_s,
            admitted_s=self.arrived_s if self._admitted_s is None else self._admitted_s,
            first_token_s=self._first_token_s,
            ended_s=ended_s,
        )
        if self._agent_report is not None:
            metrics["agent"] = self._agent_report.metrics()
        if self.report is not None and not self.wish.mock:
            self.report(run_report(self.plan, metrics))
        return event("metrics", metrics) + event("done", {"request_id": self.request_id})
