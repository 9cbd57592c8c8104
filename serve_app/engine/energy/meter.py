"""Measures the energy of one engine: reads its cards' counters once a second, and bills answers by what they show."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from router.observation import Watts
from serve_app.engine.energy.card_file import locked_card
from serve_app.engine.energy.counters import CounterError, Counters
from sustainability.cards import Account
from sustainability.measured import LEAST_S, Energy, EnergyLedger

logger = logging.getLogger("ray.serve")


class EnergyBilling(Protocol):
    """What an engine bills its answers by."""

    def bill(self, busy_s: float, idle_s: float, engine_busy_s: float) -> Energy:
        """Return the energy of an answer that has ended.

        Args:
            busy_s: its share of the busy time, s.
            idle_s: the part of the idle time that it is billed, s.
            engine_busy_s: busy time of the engine so far, s.
        """
        ...


@dataclass(frozen=True, slots=True)
class Share:
    """The engine's part of its cards."""

    name: str
    """Of the engine: no other on the machine has it."""
    part: float
    """Of each card (0-1]."""
    idle_watts: float
    """Of one whole card while idle, until it is measured."""


class Drawn(NamedTuple):
    """What an engine's cards showed since its last reading."""

    active_j: float = 0.0
    idle_j: float = 0.0
    busy_s: float = 0.0
    idle_s: float = 0.0
    skipped_s: float = 0.0
    """Busy time that could not be measured."""


class _Seen(NamedTuple):
    active_j: float
    idle_j: float
    busy_s: float
    at_s: float

    @classmethod
    def of(cls, account: Account, divided_s: float) -> _Seen:
        return cls(account.active_j, account.idle_j, account.divided_busy_s, divided_s)


class EnergyMeter:
    """Measures one engine.

    Args:
        share: of its cards.
        open_counters: finds its cards' counters; raises `CounterError`. Called again after a failure.
        folder: of the cards' files.
        busy_s: how long the engine has been busy by now, s; no answer of it is under way.
        left_s: the part of that for which no answer pays, s.
        clock: monotonic, s.
    """

    def __init__(
        self,
        share: Share,
        open_counters: Callable[[], Counters],
        folder: Path,
        *,
        busy_s: float = 0.0,
        left_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._share = share
        self._open = open_counters
        self._folder = folder
        self._clock = clock
        self._counters: Counters | None = None
        self._seen: dict[str, _Seen] = {}
        self._busy_s = busy_s  # up to which joules or time were taken in
        self.ledger = EnergyLedger(busy_s, left_s)
        self.reason: str | None = "nothing was read yet"
        """Why the counters cannot be read; None: they can."""
        self._active_j = self._idle_j = 0.0

    @property
    def joules(self) -> dict[str, float] | None:
        """What the counters showed of the engine so far, by state, J; None: they cannot be read now."""
        return {"busy": self._active_j, "idle": self._idle_j} if self.reason is None else None

    @property
    def watts(self) -> Watts:
        """What they show lately."""
        return Watts(self.ledger.active_watts, self.ledger.idle_watts, self.reason)

    def bill(self, busy_s: float, idle_s: float, engine_busy_s: float) -> Energy:
        """See `EnergyBilling.bill`."""
        joules = self.ledger.bill(busy_s, idle_s, engine_busy_s, by_model=self.reason is not None)
        if joules is not None:
            return Energy(joules.busy_j, joules.idle_j)
        return Energy(reason=self.reason or f"less than {LEAST_S:g} s of work was measured yet")

    async def round(self, busy_s: float, left_s: float) -> None:
        """Read the counters once, in a thread, and take in what they show.

        Args:
            busy_s: how long the engine has been busy, up to now, s.
            left_s: the part of that for which no answer pays, s.
        """
        self.take(await asyncio.to_thread(self.read, busy_s), busy_s, left_s)

    def take(self, drawn: Drawn | CounterError, busy_s: float, left_s: float) -> None:
        """Take in what `read` has returned; a failure is remembered as the reason. For the other arguments see
        `round`."""
        if isinstance(drawn, CounterError):
            self._fail(drawn)
            return
        if self.reason is not None and self._seen:
            logger.info("the energy of %s is measured", self._share.name)
            self.reason = None
        self.ledger.skip(drawn.skipped_s)
        self.ledger.observe(drawn.active_j, drawn.idle_j, drawn.busy_s, drawn.idle_s)
        self._active_j += drawn.active_j
        self._idle_j += drawn.idle_j
        self.ledger.lose(left_s, busy_s)

    def read(self, busy_s: float) -> Drawn | CounterError:
        """Read the counters, divide them among the engines, and return what is new of this one, or why it is not
        known. Blocks."""
        try:
            return self._read(busy_s)
        except CounterError as error:
            self._counters = None
            self.leave()
            return error

    def _read(self, busy_s: float) -> Drawn:
        if self._counters is None:
            self._counters = self._open()
        readings = self._counters.read()
        now_s = self._clock()
        news = []
        for reading in readings:
            with locked_card(self._folder, reading.card, now_s) as card:
                before = self._seen.get(reading.card)
                name, part = self._share.name, self._share.part
                if before is None or not card.report(name, busy_s, reading.counter_j, reading.limit_watts, now_s):
                    card.join(name, part, busy_s, reading.counter_j, self._share.idle_watts, now_s)
                    before = None
                after = _Seen.of(card.engines[name], card.divided_s)
            self._seen[reading.card] = after
            news.append(None if before is None else _drawn(before, after))
        return self._together([each for each in news if each is not None], len(readings), busy_s)

    def _together(self, news: list[Drawn], cards: int, busy_s: float) -> Drawn:
        """Return what is new of all cards; nothing if one has just been joined."""
        taken_s = self._busy_s
        if len(news) < cards:
            self._busy_s = max(taken_s, busy_s)
            return Drawn(skipped_s=self._busy_s - taken_s)
        measured_s = max(each.busy_s for each in news)
        self._busy_s = taken_s + measured_s
        return Drawn(
            sum(each.active_j for each in news),
            sum(each.idle_j for each in news),
            measured_s,
            max(each.idle_s for each in news),
        )

    def _fail(self, error: CounterError) -> None:
        if error.reason != self.reason:
            logger.warning("the energy of %s is modelled: %s", self._share.name, error)
        self.reason = error.reason

    def leave(self) -> None:
        """Take the engine off its cards, so that the others do not wait for it."""
        for card in self._seen:
            try:
                with locked_card(self._folder, card, self._clock()) as state:
                    state.leave(self._share.name)
            except CounterError as error:
                logger.warning("%s", error)
        self._seen = {}


def _drawn(before: _Seen, after: _Seen) -> Drawn:
    busy_s = after.busy_s - before.busy_s
    return Drawn(
        after.active_j - before.active_j,
        after.idle_j - before.idle_j,
        busy_s,
        max(0.0, after.at_s - before.at_s - busy_s),
    )
