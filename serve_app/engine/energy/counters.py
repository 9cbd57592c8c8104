"""What a meter reads: the energy counters of a replica's cards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class CounterError(Exception):
    """The counters cannot be read.

    Args:
        reason: why, in words; clients see it, so it has no names of cards and files.
        detail: more, for the log.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class CardReading:
    """One card's counter at one moment."""

    card: str
    """Its UUID."""
    counter_j: float
    """Energy since the driver was loaded, J."""
    limit_watts: float | None
    """Its power limit; None: not known."""


class Counters(Protocol):
    """The counters of all cards of a replica."""

    def read(self) -> Sequence[CardReading]:
        """Return a reading of each card.

        Raises:
            CounterError: one cannot be read.
        """
        ...
