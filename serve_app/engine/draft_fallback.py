"""Keeps an engine on the drafts that are chosen for it: by their acceptance, or by order."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from cluster.pool.messages import DraftOrder
from router.registry import TierName
from serve_app.engine.interface import DraftCount, Engine, EngineError
from serve_app.speculation.draft_choice import DraftChoice
from serve_app.speculation.settings import FallbackSettings

logger = logging.getLogger("ray.serve")


@dataclass(slots=True)
class DraftKeeper:
    """Of one replica whose step has a floor.

    Args:
        tier: its tier.
        engine: its engine.
        floor: acceptance rate (0-1) under which the own drafts are given up.
        settings: how sure that must be.
    """

    tier: TierName
    engine: Engine
    floor: float
    settings: FallbackSettings
    choice: DraftChoice = field(default_factory=DraftChoice)
    _judged: DraftCount = field(default_factory=DraftCount)
    _obeyed: DraftOrder | None = None
    _said: str | None = None
    """The last failure: told once."""

    async def judge(self) -> None:
        """Go over to n-gram drafts when the own ones are too poor."""
        own, judged = self.engine.own_drafts(), self._judged
        self._judged = DraftCount(own.drafted, own.accepted)
        drafted, accepted = own.drafted - judged.drafted, own.accepted - judged.accepted
        await self._go_over(self.choice.after(drafted, accepted, self.floor, self.settings))

    async def obey(self, order: DraftOrder | None) -> None:
        """Do what the newest order says, once."""
        if order is not None and order != self._obeyed and await self._go_over(self.choice.told(order.drafts)):
            self._obeyed = order

    async def _go_over(self, choice: DraftChoice) -> bool:
        """Whether the engine now has the drafts of that choice."""
        if choice.drafts != self.choice.drafts:
            try:
                await self.engine.use_drafts(choice.drafts)
            except EngineError as error:
                # The replica's health is looked after elsewhere; the next report, a second later, tries again.
                if error.message != self._said:
                    logger.warning("tier %s: drafts not changed: %s", self.tier, error.message)
                self._said = error.message
                return False
            logger.warning("tier %s: %s drafts from now on: %s", self.tier, choice.drafts, choice.reason)
        self.choice = choice
        return True
