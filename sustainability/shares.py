"""Divide the busy time of an engine among its requests, step by step. Pure.

    share = fixed * verify_s / requests
          + (1 - fixed) * verify_s * tokens / tokens of the step
          + draft_s * drafts / drafts of the step

The weights are read once for all of a step's requests, however few tokens they have: that is the fixed part, and they
pay it in equal parts. The rest grows with the tokens that are computed: prompt tokens, the one that is decoded, and
drafts to verify, accepted or not. Drafting is paid by those whose drafts they are. The shares of a step add up to its
time. Not counted: attention over a long context costs more than over a short one.

The division is this project's own: no standard says how a batch shares its engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Work(NamedTuple):
    """What one request had done in a step."""

    tokens: int
    """Prompt tokens read, or one that is decoded and its drafts that were verified; at least 1."""
    drafts: int = 0
    """Those of them that a draft model or head had to make."""


class StepParts(NamedTuple):
    """Time of a step, s."""

    verify_s: float
    """Of the target's forward pass, and all else that is no drafting."""
    draft_s: float = 0.0
    """Of drafting."""
    fixed: float = 1.0
    """The part (0-1) of `verify_s` that a step takes however few tokens it has."""


def step_shares(time: StepParts, work: Mapping[str, Work]) -> dict[str, float]:
    """Return each request's share of a step, s; they add up to the step's time if there is any request."""
    drafts = sum(each.drafts for each in work.values())
    # Where nobody drafted, as in the step that ends all prefills, drafting counts as the rest.
    verify_s, draft_s = (time.verify_s, time.draft_s) if drafts else (time.verify_s + time.draft_s, 0.0)
    tokens = sum(each.tokens for each in work.values())
    fixed_s = time.fixed * verify_s / max(1, len(work))
    token_s = (1 - time.fixed) * verify_s / max(1, tokens)
    each_draft_s = draft_s / max(1, drafts)
    return {key: fixed_s + token_s * each.tokens + each_draft_s * each.drafts for key, each in work.items()}


class Totals(NamedTuple):
    """Where an engine's busy time went, s: `busy_s` is what was billed, `left_s`, `late_s`, and what requests that
    are under way have not been billed yet."""

    busy_s: float = 0.0
    left_s: float = 0.0
    """Shares of requests that were aborted, since their last token."""
    late_s: float = 0.0
    """What steps that had begun when a request ended cost it more (or, negative, less) than it was billed for them."""


NOTHING = Totals()


class Ledger:
    """Shares of the requests of one engine that they have not been billed yet, and the engine's totals."""

    def __init__(self) -> None:
        self._owed: dict[str, float] = {}
        self._to_come: dict[str, int] = {}
        self._busy_s = self._left_s = self._late_s = 0.0

    @property
    def totals(self) -> Totals:
        """Totals since the engine started."""
        return Totals(self._busy_s, self._left_s, self._late_s)

    def begin(self, request_id: str) -> None:
        """Open a request's account."""
        self._owed[request_id] = 0.0

    def charge(self, shares: Mapping[str, float]) -> None:
        """Charge the shares of a step that has ended."""
        for request_id, share_s in shares.items():
            self._busy_s += share_s
            if request_id in self._owed:
                self._owed[request_id] += share_s
            elif request_id in self._to_come:
                self._late_s += share_s
                self._to_come[request_id] -= 1
                if not self._to_come[request_id]:
                    del self._to_come[request_id]
            else:
                self._left_s += share_s

    def bill(self, request_id: str) -> float:
        """Return what the request owes since the last bill, s."""
        owed_s = self._owed.get(request_id, 0.0)
        if request_id in self._owed:
            self._owed[request_id] = 0.0
        return owed_s

    def last_bill(self, request_id: str, steps: int = 0, advance_s: float = 0.0) -> float:
        """Return the last bill of a request that has ended, s.

        Args:
            request_id: of the request.
            steps: that had begun with it when it ended, and whose result nobody will see.
            advance_s: its expected share of them.
        """
        if steps:
            self._to_come[request_id] = steps
        self._late_s -= advance_s
        return self._owed.pop(request_id, 0.0) + advance_s

    def leave(self, request_id: str) -> None:
        """Close the account of a request that was aborted, if it is open."""
        self._left_s += self._owed.pop(request_id, 0.0)


class IdleLedger:
    """Idle time of one engine that no answer was billed yet.

    An answer pays the part of it that it has of the busy time for which none was billed yet. So idle time is billed
    once, and the first answer after a rest pays for the rest.
    """

    def __init__(self) -> None:
        self._busy_s = self._idle_s = 0.0  # billed

    def bill(self, busy_s: float, engine_busy_s: float, up_s: float) -> float:
        """Return the idle time that an answer is billed, s.

        Args:
            busy_s: share of the busy time for which it was billed none yet, s.
            engine_busy_s: busy time of the engine so far, s.
            up_s: since the engine was ready, s.
        """
        if busy_s <= 0:
            return 0.0
        idle_s = max(0.0, up_s - engine_busy_s - self._idle_s)
        others_s = max(0.0, engine_busy_s - self._busy_s - busy_s)
        billed_s = idle_s * busy_s / (busy_s + others_s)
        self._busy_s += busy_s
        self._idle_s += billed_s
        return billed_s
