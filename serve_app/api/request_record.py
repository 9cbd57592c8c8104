"""What happened to one request, for metrics and logs: filled in on its way, and complete when its last byte is sent.

Who sent it, and its id, are there from the beginning, whatever refuses it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router.observation import TierState
from router.plan import Plan
from router.registry import TierName
from router.request import Goal
from serve_app.admission.headers import request_id, route_of
from serve_app.api.escalation import Escalated
from serve_app.auth.identity import is_stranger, key_in
from serve_app.auth.keys import Key
from serve_app.engine.interface import Leg

CLIENT_LEFT: Final = "client_left"
OK: Final = "ok"
_KEY: Final = "power_lever.record"
_ERRORS_FROM: Final = 400


def unreported_s(quiet_s: float, tier: TierState, *, waits: bool) -> float:
    """Estimate what an engine did for a request since it said so last, s: an equal part among those that it has.

    What it really did is known in the engine alone, which says it with the next token; there is none.

    Args:
        quiet_s: time since then, s.
        tier: as it is now.
        waits: whether it may still wait in the engine's queue: it had no token yet.
    """
    waited_s = tier.queue_wait_ms / 1000 if waits else 0.0
    return max(0.0, quiet_s - waited_s) / max(1.0, tier.engine_running / max(1, tier.running))


class Delivered(NamedTuple):
    """What a client got, whatever ended its answer."""

    tokens: int = 0
    busy_s: float = 0.0
    """Its shares of the engines' busy time, s."""
    first_token_s: float | None = None
    """Monotonic clock, s; None: it got none."""


@dataclass(slots=True)
class TokensTaken:
    """The tokens that a request has taken so far, however it goes on: of its prompt once, of its answers as they came.

    Tokens of an answer that was withdrawn, as another tier began it anew, count too.
    """

    prompt: int = 0
    completion: int = 0
    more: Callable[[int], None] = lambda tokens: None
    """Takes each number of new ones."""

    def saw(self, prompt: int, completion: int) -> None:
        """Note all that it has taken by now. A replica that begins it anew is not paid again."""
        prompt, completion = max(prompt, self.prompt), max(completion, self.completion)
        new = prompt + completion - self.prompt - self.completion
        if new:
            self.prompt, self.completion = prompt, completion
            self.more(new)


@dataclass(slots=True)
class RequestRecord:
    """One request. Who answers it writes; who counts or logs it reads when it has ended."""

    route: str = ""
    arrived_s: float = field(default_factory=time.monotonic)
    """Monotonic clock, s."""
    plan: Plan | None = None
    """The last one; None: the request was refused before."""
    code: str | None = None
    """How it ended: `ok`, `client_left`, or the code of its error; None: it has not ended."""
    metrics: Mapping[str, Any] | None = None
    """The data of its `metrics` event, if its answer is complete and says something of the tier."""
    completion_tokens: int = 0
    """Of all its answers together."""
    delivered: Delivered | None = None
    """None: nobody knows, as of answers of `/v1`, which are vLLM's own; of these `tokens` has what was made."""
    ended_s: float = 0.0
    """Monotonic clock, s."""
    tokens: TokensTaken = field(default_factory=TokensTaken)
    request_id: str = ""
    lost: list[tuple[TierName, str]] = field(default_factory=list)
    """Tier and code of how each replica was lost that had the request, and another one was asked."""
    unbilled: list[Leg] = field(default_factory=list)
    """What engines did for it that is not in `metrics`: all, if there are none; else what is no part of the answer."""
    estimated: bool = False
    """Whether `unbilled` has an estimate of what an engine did since the last token."""
    goal: Goal | None = None
    agent_usd: float | None = None
    """What the router agent cost for it, USD; None: it was not asked."""
    key: Key | None = None
    """Of whoever sent it; None: no valid one was sent, or nobody was asked."""
    client: str | None = None
    """Address that it came from: behind a proxy, the proxy's. None: unknown."""
    stranger: bool = False
    """Whether it was turned away before anybody was known: it came without a valid key where keys are asked for, or the
    front door refused it and it had none."""
    escalated: Escalated | None = None
    """What became of an answer that went wrong in mid-stream; None: it did not."""
    prompt: Any = None
    """What was asked, as JSON; only where the operator wants prompts in the log."""

    def planned(self, plan: Plan) -> None:
        """Note a plan; what an earlier plan's tier said no longer counts."""
        self.plan, self.code = plan, None

    def lose(self, tier: TierName, code: str) -> None:
        """Note that a replica of a tier was lost."""
        self.lost.append((tier, code))

    def finished(self, metrics: Mapping[str, Any], completion_tokens: int) -> None:
        """Note that the answer is complete."""
        self.metrics, self.completion_tokens = metrics, completion_tokens


def record_of(scope: Scope) -> RequestRecord:
    """Return the record of a request; one that nobody reads for a route that is not watched."""
    record: RequestRecord = scope.get(_KEY) or RequestRecord()
    return record


def request_id_of(scope: Scope) -> str:
    """Return a request's id: its record's, or for a route that is not watched its header's."""
    return record_of(scope).request_id or request_id(scope["headers"])


def key_id_of(record: RequestRecord) -> str | None:
    """Return the id of the key of whoever sent a request; None: nobody was asked for one."""
    return None if record.key is None else record.key.id


@dataclass(frozen=True, slots=True)
class RequestRecords:
    """Gives each request of some routes its record, and hands it on when the request has ended.

    It stands right behind authentication, so that each record says whose it is.

    Args:
        routes: their paths.
        ended: takes the record.
    """

    routes: frozenset[str]
    ended: Callable[[RequestRecord], None]

    def middleware(self, app: ASGIApp) -> ASGIApp:
        """Return the application with the records around it."""

        async def recorded(scope: Scope, receive: Receive, send: Send) -> None:
            path = route_of(scope) if scope["type"] == "http" else ""
            if path not in self.routes or scope["method"] != "POST":
                await app(scope, receive, send)
                return
            record = scope[_KEY] = RequestRecord(
                path,
                time.monotonic(),
                request_id=request_id(scope["headers"]),
                key=key_in(scope),
                client=scope["client"][0] if scope.get("client") else None,
                stranger=is_stranger(scope),
            )
            status = 0

            async def send_seen(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            try:
                await app(scope, receive, send_seen)
            finally:
                record.ended_s = time.monotonic()
                if record.code is None:
                    # Nobody has said how it ended: it was cancelled, or its stream closed.
                    record.code = CLIENT_LEFT if status < _ERRORS_FROM else "other"
                self.ended(record)

        return recorded
