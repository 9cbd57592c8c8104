"""One account of a key at one ingress replica: what it has used and holds, and what it may take without asking. Pure.

    statement   what the replica says to the pool, with what its waiting requests need
    grant       what it may take then, for a second

The pool counts what was held and granted until the next statement. So to take from a grant, and to take again what was
given back, needs no question. While a statement is under way, what was granted before is not used: the pool may have
given it to another replica by then.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from cluster.pool.allowances import LEASE_S, Account, Grant, Statement, Use

MINUTE_S: Final = 60.0
_NOTHING: Final = 1e-12
"""Sums of dollars are not exact."""
SAY_AGAIN_S: Final = 2.0
"""A pool that has begun anew knows after so long what still counts, s."""


@dataclass(slots=True)
class Allowance:
    """One account at one of several replicas. Times are of a monotonic clock, s.

    Args:
        account: which.
        most: the limit; it changes with the keys file, when a request comes.
        replicas: how many ingress replicas there are.
    """

    account: Account
    most: float
    replicas: int
    held: float = 0.0
    """By open requests."""
    _free: float = 0.0
    """What it may take; less than 0: what was used beyond what was held."""
    _free_until_s: float = -math.inf
    _uses: deque[tuple[int, float]] = field(default_factory=deque)
    """When an amount expires, in whole seconds, and the amount; oldest first."""
    _taken: tuple[int, float, float] = (0, 0.0, 0.0)
    """A second; what was taken in it, and in the one before."""
    _stated_s: float = -math.inf
    _granted: tuple[float, Grant] | None = None
    _known_until_s: float = -math.inf
    _said: bool = True
    """Whether the pool knows all that was used."""

    def limit(self, most: float) -> None:
        """Set the limit. What was granted under another is not used: the pool is asked again."""
        if most != self.most:
            self.most, self._free_until_s, self._known_until_s = most, -math.inf, -math.inf

    def hold(self, amount: float, now_s: float) -> None:
        """Hold an amount, of what is free or may be had alone."""
        self.held += amount
        self._free -= amount
        second, now, before = self._taken
        if int(now_s) != second:
            now, before = 0.0, now if int(now_s) == second + 1 else 0.0
        self._taken = (int(now_s), now + amount, before)

    def free(self, now_s: float) -> float:
        """Return what may be held without asking."""
        return self._free if now_s <= self._free_until_s else min(0.0, self._free)

    def alone(self, now_s: float) -> float:
        """Return what may be held while the pool is away: what is left of this replica's part of the limit.

        The sum of all parts is the limit; of a count each has one at least. What the others were last known to have
        counts too.
        """
        part = max(0.0 if self.account.is_money else 1.0, self.most / self.replicas)
        own = self.used(now_s) + self.held
        return min(part, self.most - self._others(now_s)) - own

    def use(self, amount: float, now_s: float, counts_s: float, *, held: float) -> None:
        """Note that an amount was used, of which so much had been held.

        Args:
            amount: used.
            now_s: now.
            counts_s: for how long it counts, s.
            held: at most `amount`; the rest was used without having been held.
        """
        self._hold_less(held)
        self._free -= amount - held
        expires_s, self._said = math.ceil(now_s + counts_s), False  # at most a second later
        if self._uses and self._uses[-1][0] >= expires_s:
            last_s, before = self._uses.pop()
            self._uses.append((last_s, before + amount))
        else:
            self._uses.append((expires_s, amount))

    def give_back(self, amount: float) -> None:
        """Hold an amount no longer: it was not used, and may be taken again."""
        self._hold_less(amount)
        self._free += amount

    def used(self, now_s: float) -> float:
        """Return what this replica has used and still counts."""
        while self._uses and self._uses[0][0] <= now_s:
            self._uses.popleft()
        return sum(amount for _, amount in self._uses)

    def statement(self, need: float, least: float, now_s: float) -> Statement:
        """Return what to say to the pool; what was granted before is given back.

        Args:
            need: of the waiting requests.
            least: of the smallest of them; a unit if none waits.
            now_s: now.
        """
        self.used(now_s)
        self._free, self._free_until_s, self._stated_s, self._said = 0.0, -math.inf, now_s, True
        uses = tuple(Use(expires_s - now_s, amount) for expires_s, amount in self._uses)
        return Statement(self.account, self.most, uses, self.held, need, self._ahead(now_s), least)

    def lost(self) -> None:
        """Note that the statement had no answer."""
        self._said = False

    def granted(self, grant: Grant, now_s: float) -> None:
        """Take the answer to the last statement. Now it can be used, however late it came: the pool counts it."""
        self._free += grant.lease
        self._free_until_s = max(now_s, self._stated_s + LEASE_S)
        self._granted, self._known_until_s = (now_s, grant), now_s + LEASE_S

    def is_due(self, now_s: float) -> bool:
        """Return whether the pool has to hear of it although nothing is needed."""
        is_old = now_s - self._stated_s >= SAY_AGAIN_S and self.used(now_s) > 0
        return self.held > 0 or self._free != 0 or not self._said or is_old

    def knows(self, now_s: float) -> bool:
        """Return whether what is known of the other replicas is as new as a lease, and of this limit."""
        return now_s <= self._known_until_s

    def left(self, now_s: float) -> float:
        """Return what is left of the limit, as far as is known here."""
        if self._granted is None:
            return max(0.0, self.most / self.replicas - self.used(now_s) - self.held)
        return min(self.most, max(0.0, self._granted[1].left + self._free))

    def retry_s(self, now_s: float) -> float | None:
        """Return when a unit is there again if nobody takes one, s; None: nobody can know, as it is held."""
        if self._granted is None or self._granted[1].retry_s is None:
            return None
        at_s, grant = self._granted
        assert grant.retry_s is not None
        return max(0.0, at_s + grant.retry_s - now_s)

    def reset_s(self, now_s: float) -> float:
        """Return when all that is used has expired, s."""
        own_s = self._uses[-1][0] - now_s if self._uses else 0.0
        return max(0.0, own_s, 0.0 if self._granted is None else self._granted[0] + self._granted[1].reset_s - now_s)

    def _hold_less(self, amount: float) -> None:
        left = self.held - amount
        self.held = left if left > _NOTHING else 0.0

    def _others(self, now_s: float) -> float:
        if self._granted is None:
            return 0.0
        at_s, grant = self._granted
        return grant.others if now_s < at_s + max(grant.reset_s, MINUTE_S) else 0.0

    def _ahead(self, now_s: float) -> float:
        """Return what to ask for in advance: as much as was taken in a second of late, at most a second's part."""
        second, now, before = self._taken
        recent = max(now, before) if int(now_s) == second else now if int(now_s) == second + 1 else 0.0
        return min(recent, self.most // MINUTE_S)
