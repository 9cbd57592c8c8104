"""The limits of keys over all ingress replicas: what each has used and holds, and what is left. Pure.

Each replica says all that it knows of an account with every statement, and not what has changed: an answer that is
lost, or a call that comes twice, counts nothing twice, and after a restart of the pool the next statements fill it
again.

An amount that was used counts until it expires: for a limit per minute 60 s after, for one per day until midnight. An
amount that is held counts until it is given back. What a replica may take in advance is its lease. So whatever the
replicas do with their leases, the sum of all that counts never exceeds the limit; what a lease costs is that others
cannot have it, for `LEASE_S`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

LEASE_S: Final = 1.0
"""A replica may take from its lease for so long after it has asked for it, s."""
RENEW_EVERY_S: Final = 0.5
"""Interval of the statements of a replica that has an account in use, s."""
GONE_AFTER_S: Final = 10.0
"""What a replica holds that has been silent for so long is free again, s; its requests have ended with it."""
KEPT_BACK: Final = 8
"""Of what is left, a replica gets at most so manieth part in advance: else the last of a limit would lie idle."""
_EXACT: Final = 1e-9
"""Sums of dollars are not exact."""


class Account(NamedTuple):
    """One limit of one holder."""

    holder: str
    limit: str

    @property
    def is_money(self) -> bool:
        """Whether it is of dollars and not of a count, which has no parts."""
        return self.limit.endswith("usd_per_day")


class Use(NamedTuple):
    """An amount that was used."""

    counts_s: float
    """For how long it still counts, s."""
    amount: float


@dataclass(frozen=True, slots=True)
class Statement:
    """What one replica says of an account."""

    account: Account
    most: float
    """The limit."""
    uses: tuple[Use, ...] = ()
    """What it has used and still counts, oldest first."""
    held: float = 0.0
    """By its open requests."""
    need: float = 0.0
    """What its waiting requests need."""
    ahead: float = 0.0
    """What it would take in advance."""
    least: float = 0.0
    """What the smallest of the waiting requests needs, for `retry_s`."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer to a statement."""

    account: Account
    lease: float
    """What the replica may take beyond what it holds, from its statement on for `LEASE_S`."""
    left: float
    """What nobody holds, has used or may take in advance."""
    others: float
    """What counts of the other replicas: used and held."""
    retry_s: float | None
    """When so much has expired that the smallest need is there, s; None: only when somebody gives something back."""
    reset_s: float
    """When all that is used has expired, s."""


@dataclass(slots=True)
class _Part:
    """An account at one replica."""

    number: int
    """Of the newest statement."""
    heard_s: float
    uses: list[tuple[float, float]]
    """When each expires, s, and its amount; oldest first."""
    held: float
    lease: float

    @property
    def is_empty(self) -> bool:
        return not self.uses and not self.held and not self.lease


@dataclass(slots=True)
class Allowances:
    """All accounts. Times are of a monotonic clock, s."""

    _parts: dict[Account, dict[str, _Part]] = field(default_factory=dict)
    """By account and replica."""

    def lease(self, replica: str, number: int, statements: Sequence[Statement], now_s: float) -> list[Grant]:
        """Take the statements of a replica and answer each.

        Args:
            replica: its name.
            number: grows with each call of the replica. An older one, which was late, changes nothing.
            statements: one for each account.
            now_s: now.
        """
        return [self._lease(replica, number, statement, now_s) for statement in statements]

    def forget(self, now_s: float) -> None:
        """Forget what no longer counts."""
        for account, parts in list(self._parts.items()):
            self._expire(parts, now_s)
            if not parts:
                del self._parts[account]

    @property
    def accounts(self) -> int:
        """How many accounts are in use."""
        return len(self._parts)

    def _lease(self, replica: str, number: int, statement: Statement, now_s: float) -> Grant:
        parts = self._parts.setdefault(statement.account, {})
        self._expire(parts, now_s)
        part = parts.get(replica)
        if part is not None and part.number > number:
            return self._grant(statement, parts, replica, 0.0, now_s)
        uses = [(now_s + use.counts_s, use.amount) for use in statement.uses]
        part = parts[replica] = _Part(number, now_s, uses, statement.held, 0.0)
        left = statement.most - sum(map(_counting, parts.values()))
        lease = min(statement.need, left)
        if left - lease > 0 and statement.ahead:
            lease += min(statement.ahead, (left - lease) // KEPT_BACK)
        part.lease = max(0.0, lease)
        return self._grant(statement, parts, replica, part.lease, now_s)

    def _grant(self, statement: Statement, parts: dict[str, _Part], replica: str, lease: float, now_s: float) -> Grant:
        counting = {name: _counting(part) for name, part in parts.items()}
        left = statement.most - sum(counting.values())
        others = sum(_used(part) + part.held for name, part in parts.items() if name != replica)
        expiring = sorted(each for part in parts.values() for each in part.uses)
        return Grant(
            statement.account,
            lease,
            max(0.0, left),
            others,
            _when_free(expiring, statement.least - left, now_s),
            max((expires_s for expires_s, _ in expiring), default=now_s) - now_s,
        )

    @staticmethod
    def _expire(parts: dict[str, _Part], now_s: float) -> None:
        for name, part in list(parts.items()):
            part.uses = [use for use in part.uses if use[0] > now_s]
            if now_s - part.heard_s > GONE_AFTER_S:
                part.held = part.lease = 0.0
            if part.is_empty and now_s - part.heard_s > GONE_AFTER_S:  # before, a late statement must find its number
                del parts[name]


def _used(part: _Part) -> float:
    return sum(amount for _, amount in part.uses)


def _counting(part: _Part) -> float:
    return _used(part) + part.held + part.lease


def _when_free(expiring: Iterable[tuple[float, float]], missing: float, now_s: float) -> float | None:
    """Return how long it takes until so much has expired, s; None: never so much."""
    if missing <= 0:
        return 0.0
    for expires_s, amount in expiring:
        missing -= amount
        if missing <= _EXACT:
            return max(0.0, expires_s - now_s)
    return None
