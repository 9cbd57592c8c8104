"""The watch over one answer that is under way: it asks the policy, keeps the text, and finds the place for a seam."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import orjson

from router.escalation import EscalationPolicy, Move, Progress, escalate_of
from router.observation import Observation
from router.plan import Plan
from router.registry import Profile, TierName
from router.request import InferenceRequest
from router.signs import NO_SIGNS, Signs
from router.trace_steps import Escalation
from serve_app.engine.interface import GenerationRequest, TokenBatch
from serve_app.transport.resuming import ResumingStream

SEAM_WITHIN: Final = 32
"""Tokens within which an answer that is to go on elsewhere is left at the end of a clause, else wherever it is: two
tokenizers cut a word differently, and a model that is given half a word may not complete it."""
TAKEN_WITHIN_S: Final = 2.0
"""A tier that has not taken the answer by then, s, does not get it."""
_CLAUSE_ENDS: Final = ("Po", "Pe", "Pf")
"""Unicode categories of characters: punctuation that neither opens nor connects."""
_EVENT: Final = b"data: "
_EVENT_END: Final = b"\n\n"


class Escalated(NamedTuple):
    """What became of an answer that went wrong, or was about to break a limit."""

    move: Move
    from_tier: TierName
    at_token: int
    """`token` events before it."""
    rewrite: bool
    applied: bool
    """Whether the other tier went on."""
    refusal: str = ""
    """Why it did not, though it was asked."""

    @property
    def reason(self) -> str:
        """Why, in words."""
        return f"{self.move.reason}, but {self.refusal}" if self.refusal else self.move.reason

    def event(self) -> dict[str, Any]:
        """Return the data of the `escalation` event."""
        return {
            "from_tier": self.from_tier,
            "to_tier": self.move.to_tier,
            "reason": self.reason,
            "at_token": self.at_token,
            "rewrite": self.rewrite,
        }

    def metrics(self) -> dict[str, Any]:
        """Return the part of the `metrics` event."""
        return self.event() | {"applied": self.applied}

    def trace(self) -> dict[str, Any]:
        """Return the result of the trace step of one that was not applied."""
        advice = Escalation(
            from_tier=self.from_tier,
            to_tier=self.move.to_tier,
            reason=self.reason,
            applied=False,
            at_token=self.at_token,
        )
        return advice.model_dump()


@dataclass(slots=True)
class AnswerWatch:
    """Watches one answer.

    Args:
        policy: judges it.
        applies: whether another tier goes on with it; else that is only advised.
        rewrite: whether a stronger tier begins it anew.
        ask: sends a request to a tier.
        wake: has a tier started; returns what ends the wait for it.
        clock: monotonic, s.
    """

    policy: EscalationPolicy
    applies: bool
    rewrite: bool
    ask: Callable[[TierName, GenerationRequest], ResumingStream]
    wake: Callable[[TierName], Callable[[], object]]
    clock: Callable[[], float] = time.monotonic
    signs: Signs = field(default=NO_SIGNS, init=False)
    shown: int = field(default=0, init=False)
    """`token` events so far."""
    _events: list[bytes] = field(default_factory=list, init=False)
    _coming: Move | None = field(default=None, init=False)
    """Decided, and waiting for a seam."""
    _seam_by: int = field(default=0, init=False)
    _stop_waking: Callable[[], object] | None = field(default=None, init=False)

    @classmethod
    def of(
        cls,
        request: InferenceRequest,
        plan: Plan,
        profile: Profile,
        ask: Callable[[TierName, GenerationRequest], ResumingStream],
        wake: Callable[[TierName], Callable[[], object]],
    ) -> AnswerWatch | None:
        """Return the watch over an answer; None: it is not to be watched."""
        tier = profile.tiers[plan.tier]
        escalate = escalate_of(request, tier)
        if escalate == "off" or request.mock:
            return None
        rewrite = tier.rewrite if request.rewrite is None else request.rewrite
        applies = escalate == "auto"
        return cls(EscalationPolicy(request, plan, profile, advises=not applies), applies, rewrite, ask, wake)

    def saw(self, batch: TokenBatch) -> None:
        """Take what was given out."""
        self.signs = batch.signs
        self.shown += batch.events.count(_EVENT_END)
        if self.applies and batch.events:
            self._events.append(batch.events)

    def move(
        self, arrived_s: float, first_token_s: float, items: ResumingStream, observation: Observation
    ) -> Move | None:
        """Return the move to make now: an advised one at once, another at the next seam; None: none.

        Args:
            arrived_s: when the request arrived, s.
            first_token_s: when its first token came, s.
            items: the answer so far.
            observation: the state of the tiers.
        """
        if self._coming is None:
            progress = Progress(
                tokens=items.delivered,
                elapsed_ms=(self.clock() - arrived_s) * 1000,
                ttft_ms=(first_token_s - arrived_s) * 1000,
                busy_s=items.busy_s,
                signs=self.signs,
            )
            move = self.policy.judge(progress, observation)
            if move is None or not self.applies:
                return move
            if move.kind == "wake":
                self._stop_waking = self.wake(move.to_tier)
                return None
            self._coming, self._seam_by = move, items.delivered + SEAM_WITHIN
        if not (self.rewrites(self._coming) or items.delivered >= self._seam_by or self._is_seam()):
            return None
        move, self._coming = self._coming, None
        return move

    def rewrites(self, move: Move) -> bool:
        """Return whether a move begins the answer anew; one for the sake of limits never does."""
        return self.rewrite and move.kind == "climb"

    def text(self) -> str:
        """Return the answer so far."""
        return "".join(_texts(b"".join(self._events)))

    def request(self, call: GenerationRequest, move: Move, delivered: int) -> GenerationRequest:
        """Return the request for the tier that goes on.

        Args:
            call: for the whole answer there.
            move: why.
            delivered: tokens so far, which count towards its `max_tokens` unless it begins anew.
        """
        if self.rewrites(move):
            return call
        left = max(1, call.max_tokens - delivered)
        return replace(call, begun=self.text(), max_tokens=left, max_tokens_is_explicit=False)

    def close(self) -> None:
        """End the wait for a tier that was woken."""
        stop, self._stop_waking = self._stop_waking, None
        if stop is not None:
            stop()

    def _is_seam(self) -> bool:
        """Whether the text so far ends a clause, or there is none."""
        if not self._events:
            return True
        last = "".join(_texts(self._events[-1]))[-1:]
        return bool(last) and unicodedata.category(last) in _CLAUSE_ENDS


def _texts(events: bytes) -> list[str]:
    return [orjson.loads(line[len(_EVENT) :])["data"]["text"] for line in events.split(_EVENT_END) if line]
