"""Who drafts in a tier for the requests that do not choose: as the chain entry says, until it falls back or is ordered.

The draft fallback: a tier whose draft model or EAGLE head is too poor, with an acceptance under the chain entry's
`floor`, switches to n-gram drafting. An operator may order any choice.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Final

from cluster.pool.messages import DraftOrder
from router.registry import DraftsChoice, TierName
from router.runs.statistics import highest_likely_rate
from serve_app.engine.drift import RUN_TOKENS, Window
from serve_app.engine.interface import DraftCount, Engine, EngineError

logger = logging.getLogger("ray.serve")

MEMORY_TOKENS: Final = 20_000.0
"""Memory of the own drafts' acceptance, draft tokens: older ones fade by e."""
Z: Final = 3.0
"""Standard deviations by which the acceptance must be under the floor, so that it is not by chance."""


@dataclass(frozen=True, slots=True)
class DraftChoice:
    """Who drafts, and why. Pure."""

    drafts: DraftsChoice = "own"
    reason: str | None = None
    """None as long as nothing happened."""
    own: Window = field(default_factory=Window)
    """Of the own drafts."""

    def after(self, drafted: int, accepted: int, floor: float, min_tokens: int) -> DraftChoice:
        """Return the choice after some more of the own drafts. It never switches back by itself.

        Args:
            drafted: draft tokens that were verified since the last call.
            accepted: how many of them were accepted.
            floor: acceptance rate (0-1) under which the own drafts are given up.
            min_tokens: draft tokens to see first.
        """
        if self.drafts == "ngram" or not drafted:
            return self
        own = self.own.after(drafted, accepted, MEMORY_TOKENS)
        # Tokens of one run of drafts stand and fall together: a run is one trial.
        trials = own.drafted / RUN_TOKENS
        if own.drafted < min_tokens or highest_likely_rate(trials, own.rate, Z) >= floor:
            return replace(self, own=own)
        return DraftChoice("ngram", f"acceptance of the own drafts is {own.rate:.3f} lately, under {floor:g}")

    def ordered(self, drafts: DraftsChoice) -> DraftChoice:
        """Return the choice after an operator's order; own drafts are then judged afresh."""
        return DraftChoice(drafts, "ordered by the operator")


@dataclass(slots=True)
class DraftKeeper:
    """Keeps the engine of one replica, whose chain entry drafts in both ways, on the chosen drafts.

    Args:
        tier: its tier.
        engine: its engine.
        floor: acceptance rate (0-1) under which the own drafts are given up; None: never.
        min_tokens: draft tokens to see first.
        choice: that the engine begins with.
    """

    tier: TierName
    engine: Engine
    floor: float | None
    min_tokens: int
    choice: DraftChoice = field(default_factory=DraftChoice)
    _judged: DraftCount = field(default_factory=DraftCount)
    _obeyed: DraftOrder | None = None
    _logged: str | None = None
    """The last failure; it is logged once."""

    async def judge(self) -> None:
        """Switch to n-gram drafting when the own drafts are too poor."""
        if self.floor is None:
            return
        own, judged = self.engine.own_drafts(), self._judged
        self._judged = DraftCount(own.drafted, own.accepted)
        drafted, accepted = own.drafted - judged.drafted, own.accepted - judged.accepted
        await self._switch(self.choice.after(drafted, accepted, self.floor, self.min_tokens))

    async def obey(self, order: DraftOrder | None) -> None:
        """Follow the newest order, once."""
        if order is not None and order != self._obeyed and await self._switch(self.choice.ordered(order.drafts)):
            self._obeyed = order

    async def _switch(self, choice: DraftChoice) -> bool:
        """Have the engine draft by that choice; return whether it does."""
        if choice.drafts != self.choice.drafts:
            try:
                await self.engine.use_drafts(choice.drafts)
            except EngineError as error:
                # Health checks judge the replica; the next report, a second later, tries again.
                if error.message != self._logged:
                    logger.warning("tier %s: drafts not changed: %s", self.tier, error.message)
                self._logged = error.message
                return False
            logger.warning("tier %s: %s drafts from now on: %s", self.tier, choice.drafts, choice.reason)
        self.choice = choice
        return True
