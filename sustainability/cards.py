"""Divide the energy of one card among the engines on it. Pure.

Each engine reports about once a second how long it has been busy since it started, with the card's energy counter. As
soon as every engine has reported since the last division, what the counter grew by is divided:

    idle   = idle watts * time in which no engine was busy
    active = growth - idle, at least idle watts and at most the power limit, each times the busy time

Active joules go by busy time, idle ones by the engines' parts of the card. Each joule of the counter goes to one engine
once. The time in which no engine was busy is known for one engine; of several it is what it would be if they were busy
independently of each other. Idle watts are learned from times in which no engine was busy.

An engine that is silent for `SILENT_S` has died: the others pay nothing for it. It is taken to have been as busy as
before, and its joules are lost. What other programs draw on the card cannot be told apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Final

SILENT_S: Final = 5.0
"""Time without a report after which an engine has died, s."""
MOST_WATTS: Final = 5000.0
"""A counter that grows faster than this is not believed, W: no card draws as much."""
_LOWER: Final = 0.2
_HIGHER: Final = 0.02
"""Weight of an idle second in the idle watts if it has less, and if it has more: then another engine may be loading."""


@dataclass(slots=True)
class Account:
    """One engine on a card; times are of the monotonic clock, which all processes of a node share."""

    part: float
    """Its part of the card (0-1]."""
    reported_s: float
    """When it reported last."""
    busy_s: float
    """Its busy time since it started, as of then, s."""
    divided_busy_s: float
    """The busy time whose joules it has, s."""
    usual: float = 0.0
    """Share of the time (0-1) in which it was busy, as of the last division."""
    active_j: float = 0.0
    idle_j: float = 0.0
    """Its joules since it joined."""


@dataclass(slots=True)
class Card:
    """What the engines on one card share of it.

    Args:
        counter_j: the counter at the last division, J.
        divided_s: when that was.
        idle_watts: of the card while no engine is busy; modelled until it was measured.
        idle_is_measured: whether it was.
        lost_j: joules of engines that died, since their last report.
        engines: by name.
    """

    counter_j: float = 0.0
    divided_s: float = 0.0
    idle_watts: float = 0.0
    idle_is_measured: bool = False
    lost_j: float = 0.0
    engines: dict[str, Account] = field(default_factory=dict)

    def join(self, name: str, part: float, busy_s: float, counter_j: float, idle_watts: float, now_s: float) -> None:
        """Take an engine in; it pays from now on. What the card drew while there was none is nobody's."""
        self.engines.pop(name, None)
        if not self._living(now_s):
            self.engines, self.counter_j, self.divided_s = {}, counter_j, now_s
        if not self.idle_is_measured:
            self.idle_watts = idle_watts
        self.engines[name] = Account(part, now_s, busy_s, busy_s)

    def leave(self, name: str) -> None:
        """Let an engine go that stops, or cannot read the counter: like one that has died, but at once."""
        if name in self.engines:
            self.engines[name].reported_s = -SILENT_S  # before the clock began

    def report(self, name: str, busy_s: float, counter_j: float, limit_watts: float | None, now_s: float) -> bool:
        """Take an engine's report, and divide if it was the last one that was missing.

        Args:
            name: of the engine.
            busy_s: how long it has been busy since it started, s; never falls.
            counter_j: the card's counter now, J.
            limit_watts: the card's power limit; None: not known.
            now_s: monotonic clock.

        Returns:
            Whether it is known here; if not, it has to join (again).
        """
        account = self.engines.get(name)
        if account is None:
            return False
        account.busy_s, account.reported_s = busy_s, now_s
        if all(each.reported_s > self.divided_s for each in self._living(now_s)):
            self._divide(counter_j, limit_watts, now_s)
            self._bury(now_s)
        return True

    def _living(self, now_s: float) -> list[Account]:
        return [each for each in self.engines.values() if now_s - each.reported_s < SILENT_S]

    def _bury(self, now_s: float) -> None:
        self.engines = {name: each for name, each in self.engines.items() if now_s - each.reported_s < SILENT_S}

    def _grown_j(self, counter_j: float, passed_s: float) -> float:
        """Return what the counter grew by; one that was set back counts from zero."""
        grown_j = counter_j - self.counter_j if counter_j >= self.counter_j else counter_j
        return grown_j if grown_j <= MOST_WATTS * passed_s else 0.0

    def _divide(self, counter_j: float, limit_watts: float | None, now_s: float) -> None:
        passed_s = now_s - self.divided_s
        if passed_s <= 0:
            return
        grown_j = self._grown_j(counter_j, passed_s)
        self.counter_j, self.divided_s = counter_j, now_s
        busy_s = {}
        for name, each in self.engines.items():
            if now_s - each.reported_s < SILENT_S:
                busy_s[name] = min(passed_s, max(0.0, each.busy_s - each.divided_busy_s))
                each.usual = busy_s[name] / passed_s
            else:
                busy_s[name] = each.usual * passed_s
            each.divided_busy_s = each.busy_s
        rest_s = passed_s * prod(1 - each_s / passed_s for each_s in busy_s.values())
        worked_s = passed_s - rest_s
        active_j = self._active_j(grown_j, rest_s, worked_s, limit_watts)
        if worked_s == 0:
            self._learn_idle(grown_j / passed_s, passed_s)
        all_s, all_parts = sum(busy_s.values()), sum(each.part for each in self.engines.values())
        for name, each in self.engines.items():
            mine_j = active_j * busy_s[name] / all_s if all_s > 0 else 0.0
            idle_j = (grown_j - active_j) * each.part / all_parts
            if now_s - each.reported_s < SILENT_S:
                each.active_j += mine_j
                each.idle_j += idle_j
            else:
                self.lost_j += mine_j + idle_j

    def _active_j(self, grown_j: float, rest_s: float, worked_s: float, limit_watts: float | None) -> float:
        active_j = max(grown_j - self.idle_watts * rest_s, self.idle_watts * worked_s)
        if limit_watts is not None and rest_s > 0:
            active_j = min(active_j, limit_watts * worked_s)
        return min(grown_j, active_j) if worked_s > 0 else 0.0

    def _learn_idle(self, watts: float, passed_s: float) -> None:
        if self.idle_is_measured:
            weight = min(1.0, passed_s * (_LOWER if watts < self.idle_watts else _HIGHER))
            watts = (1 - weight) * self.idle_watts + weight * watts
        self.idle_watts, self.idle_is_measured = watts, True
