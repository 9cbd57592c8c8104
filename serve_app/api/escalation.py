"""The watch over one answer that is under way: it asks the policy, keeps the text, and finds the place for a seam."""

from __future__ import annotations

import re
import time
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
TAKEN_WITHIN_S: Final = 1.0
"""A tier that has not taken the answer by then, s, does not get it."""
_CLAUSE_END: Final = re.compile(r"[,;!?\u2026\u3001\u3002\uff01\uff0c\uff1b\uff1f\n]$|[^\W\d_]{2}\.$")
"""What ends a clause or a line. A point only after a word, as it may stand in a number; no colon, as in an address."""
_TAIL: Final = 3
"""Characters that it looks at."""
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
        ask: sends a request to a tier.
        wake: has a tier started; returns what ends the wait for it.
        clock: monotonic, s.
    """

    policy: EscalationPolicy
    ask: Callable[[TierName, GenerationRequest], ResumingStream]
    wake: Callable[[TierName], Callable[[], object]]
    clock: Callable[[], float] = time.monotonic
    signs: Signs = field(default=NO_SIGNS, init=False)
    shown: int = field(default=0, init=False)
    """`token` events so far."""
    _events: list[bytes] = field(default_factory=list, init=False)
    _seam_by: int | None = field(default=None, init=False)
    """Tokens by which it shall go on elsewhere; None: it need not."""
    _is_over: bool = field(default=False, init=False)
    """Advised once: there is nothing more to say."""
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
        return cls(EscalationPolicy(request, plan, profile, escalate == "advise", rewrite), ask, wake)

    @property
    def applies(self) -> bool:
        """Whether another tier goes on with it; else that is only advised."""
        return not self.policy.advises

    def saw(self, batch: TokenBatch) -> None:
        """Take what was given out."""
        self.signs = batch.signs
        self.shown += batch.events.count(_EVENT_END)
        if self.applies and batch.events:
            self._events.append(batch.events)

    def move(
        self, arrived_s: float, first_token_s: float, items: ResumingStream, observation: Observation
    ) -> Move | None:
        """Return the move to make now: an advised one at once, another at a seam, if it is still right; None: none.

        Args:
            arrived_s: when the request arrived, s.
            first_token_s: when its first token came, s.
            items: the answer so far.
            observation: the state of the tiers.
        """
        if self._is_over or items.complete:
            return None
        progress = Progress(
            tokens=items.delivered,
            elapsed_ms=(self.clock() - arrived_s) * 1000,
            ttft_ms=(first_token_s - arrived_s) * 1000,
            busy_s=items.busy_s,
            signs=self.signs,
        )
        if self._seam_by is None:
            move = self.policy.judge(progress, observation)
            if move is None:
                return None
            if move.kind == "wake":
                self._stop_waking = self.wake(move.to_tier)
                return None
            if not self.applies:
                self._is_over = True
                return move
            self._seam_by = items.delivered + (0 if self.rewrites(move) else SEAM_WITHIN)
        if items.delivered < self._seam_by and not self._is_seam():
            return None
        self._seam_by = None
        move = self.policy.judge(progress, observation, at_once=True)
        return None if move is None or move.kind == "wake" else move

    def refused(self, tier: TierName) -> None:
        """Note that a tier did not take the answer; another may."""
        self.policy.refused.add(tier)

    def rewrites(self, move: Move) -> bool:
        """Return whether a move begins the answer anew; one for the sake of limits never does."""
        return self.policy.rewrites and move.kind == "climb"

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
        return replace(call, begun=self.text(), max_tokens=max(1, call.max_tokens - delivered))

    def close(self) -> None:
        """End the wait for a tier that was woken."""
        stop, self._stop_waking = self._stop_waking, None
        if stop is not None:
            stop()

    def _is_seam(self) -> bool:
        """Return whether the text so far ends a clause, or there is none."""
        tail = ""
        for events in reversed(self._events):
            tail = "".join(_texts(events)) + tail
            if len(tail) >= _TAIL:
                break
        return not tail or _CLAUSE_END.search(tail) is not None


def _texts(events: bytes) -> list[str]:
    return [orjson.loads(line[len(_EVENT) :])["data"]["text"] for line in events.split(_EVENT_END) if line]
