"""Bill answers the joules that the counters of an engine's cards show. Pure.

An answer is billed at its end, and the counter is read once a second. So it pays its busy time at the watts that are
known by then, and what that was wrong by is carried on to later answers:

    owed  = joules of the counter, up to the last reading, + watts * busy time since then - joules billed so far
    watts = the same, of the last seconds of busy time
    bill  = busy time of the answer * (owed + watts * SETTLE_S) / (busy time that was not billed + SETTLE_S)

So all bills together follow the counter, and two equal answers that end one after the other pay the same within the
noise of one reading over `SETTLE_S`. Busy time that no answer pays for (of clients that left) takes its joules along.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp
from typing import Final, NamedTuple

SETTLE_S: Final = 10.0
"""Busy time over which an error of the watts is settled, s."""
MEMORY_S: Final = 20.0
"""Time constant with which busy and idle watts forget, s of busy or idle time."""
LEAST_S: Final = 1.0
"""Watts count as measured after this much busy or idle time, s."""


class Joules(NamedTuple):
    """What an answer is billed by measurement."""

    busy_j: float
    """For its share of the busy time."""
    idle_j: float | None
    """For its part of the idle time; None: idle watts were not measured yet."""


@dataclass(frozen=True, slots=True)
class Energy:
    """What was measured of an answer, or why nothing was."""

    busy_j: float | None = None
    """For its share of the busy time; None: it is billed by the model."""
    idle_j: float | None = None
    """For its part of the idle time; None: that is billed by the model."""
    reason: str | None = None
    """Why it is billed by the model, in words; None: it is measured, or its replica has no meter."""

    def plus(self, other: Energy) -> Energy:
        """Return both together: measured where both are."""
        if self.busy_j is None or other.busy_j is None:
            return Energy(reason=self.reason or other.reason)
        idle_j = None if self.idle_j is None or other.idle_j is None else self.idle_j + other.idle_j
        return Energy(self.busy_j + other.busy_j, idle_j)

    def of_more_busy_time(self, factor: float) -> Energy:
        """Return what it would be at the same watts for so many times the busy time, and the same idle time."""
        return self if self.busy_j is None else replace(self, busy_j=self.busy_j * factor)


NO_METER: Final = Energy()
NOTHING_YET: Final = Energy(0.0, 0.0)


class _Watts:
    """A mean of the last seconds."""

    def __init__(self) -> None:
        self._joules = self._seconds = self._seen_s = 0.0

    def add(self, joules: float, seconds: float) -> None:
        kept = exp(-seconds / MEMORY_S)
        self._joules = kept * self._joules + joules
        self._seconds = kept * self._seconds + seconds
        self._seen_s += seconds

    @property
    def value(self) -> float | None:
        """None: too little was seen."""
        return self._joules / self._seconds if self._seen_s >= LEAST_S else None


class EnergyLedger:
    """Joules of one engine, as its counters showed them, and as they were billed.

    Args:
        busy_s: how long the engine has been busy by then, s: with its first answer, which shows that it works.
        left_s: the part of that for which no answer pays, s.
    """

    def __init__(self, busy_s: float = 0.0, left_s: float = 0.0) -> None:
        self._active, self._idle = _Watts(), _Watts()
        self._measured_j = 0.0  # active joules, and assumed ones of busy time that could not be measured
        self._began_s = self._measured_s = busy_s  # up to which busy time they are
        self._paid_j = 0.0
        self._paid_s = busy_s
        self._left_s = left_s
        self.billed_j = 0.0
        """Joules of all answers that were billed by measurement."""
        self.aside_j = 0.0
        """Joules of busy time that no answer was billed by measurement: of clients that left, and of answers that were
        billed by the model, as nothing was measured yet, or nothing could be read."""

    @property
    def active_watts(self) -> float | None:
        """Of all cards while the engine is busy; None: not measured yet."""
        return self._active.value

    @property
    def idle_watts(self) -> float | None:
        """Of all cards (of its part of one) while the engine is idle; None: not measured yet."""
        return self._idle.value

    @property
    def owed_j(self) -> float:
        """Active joules up to the last reading that were not billed yet; below zero: too much was."""
        return self._measured_j - self._paid_j

    def observe(self, active_j: float, idle_j: float, busy_s: float, idle_s: float) -> None:
        """Take what the counters showed since the last reading.

        Args:
            active_j: of the engine's busy time.
            idle_j: of its idle time.
            busy_s: that time, s.
            idle_s: that time, s.
        """
        before = self.active_watts
        self._active.add(active_j, busy_s)
        self._idle.add(idle_j, idle_s)
        self._measured_j += active_j
        self._measured_s += busy_s
        after = self.active_watts
        if before is None and after is not None:
            # What was billed before, by the model, takes the joules that it really took.
            self.aside_j = self._paid_j = after * (self._paid_s - self._began_s)

    def skip(self, busy_s: float) -> None:
        """Take in busy time that could not be measured: it is taken to be like that before."""
        watts = self.active_watts
        if watts is not None:
            self._measured_j += watts * busy_s
            self._measured_s += busy_s

    def bill(self, busy_s: float, idle_s: float, engine_busy_s: float, *, by_model: bool = False) -> Joules | None:
        """Bill an answer that has ended.

        Args:
            busy_s: its share of the busy time, s.
            idle_s: the part of the idle time that it is billed, s.
            engine_busy_s: busy time of the engine so far, s.
            by_model: whether it is billed by the model, as the counters cannot be read; it then takes the joules along
                that it would have been billed.

        Returns:
            Its joules; None: by the model.
        """
        joules = self._pay(busy_s, engine_busy_s)
        if joules is None or by_model:
            self.aside_j += joules or 0.0
            return None
        self.billed_j += joules
        watts = self.idle_watts
        return Joules(joules, None if watts is None else watts * idle_s)

    def lose(self, left_s: float, engine_busy_s: float) -> None:
        """Set aside busy time that no answer pays for.

        Args:
            left_s: since the engine started, s; it may fall.
            engine_busy_s: busy time of the engine so far, s.
        """
        self.aside_j += self._pay(left_s - self._left_s, engine_busy_s) or 0.0
        self._left_s = left_s

    def _pay(self, busy_s: float, engine_busy_s: float) -> float | None:
        watts = self.active_watts
        joules = None
        if watts is not None:
            since_s = engine_busy_s - self._measured_s
            owed_j = self.owed_j + watts * since_s
            owed_s = max(0.0, engine_busy_s - self._paid_s)
            joules = busy_s * max(0.0, owed_j + watts * SETTLE_S) / (owed_s + SETTLE_S)
            self._paid_j += joules
        self._paid_s += busy_s
        return joules
