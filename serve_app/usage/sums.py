"""Sums of what requests took, by any of their properties. Pure.

A request counts once, where it began; what each tier did for it counts at that tier. So the sums of the groups add up
to the total, however they are grouped.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Final, Literal, get_args

from serve_app.usage.lines import NOBODY, Entry

Property = Literal["key", "tier", "day", "category", "route", "outcome"]
PROPERTIES: Final[tuple[Property, ...]] = get_args(Property)
_LEFT: Final = "client_left"
_OK: Final = "ok"
GroupKey = tuple[str, ...]
"""Values of the properties by which a group was made, in their order. Of `key` it is the id."""


@dataclass(slots=True)
class Sums:
    """What the requests of a group took together."""

    requests: int = 0
    errors: int = 0
    """Of them, ended by an error."""
    left: int = 0
    """Of them, whose client left."""
    estimated: int = 0
    """Of them, with an estimate of what an engine did since its last token."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    engine_s: float = 0.0
    """Shares of the engines' busy time, s."""
    energy_wh: float = 0.0
    cost_usd: float = 0.0
    """Of the engines."""
    agent_usd: float = 0.0
    """Of the router agent's calls."""
    _ttft_ms: array[float] = field(default_factory=lambda: array("d"))

    def begun(self, entry: Entry) -> None:
        """Add a request, less what tiers did for it."""
        self.requests += 1
        self.errors += entry.outcome not in (_OK, _LEFT)
        self.left += entry.outcome == _LEFT
        self.estimated += entry.estimated
        self.prompt_tokens += entry.prompt_tokens
        self.agent_usd += entry.agent_usd
        if entry.ttft_ms is not None:
            self._ttft_ms.append(entry.ttft_ms)

    def did(self, completion_tokens: int, busy_s: float, energy_wh: float, cost_usd: float) -> None:
        """Add what a tier did."""
        self.completion_tokens += completion_tokens
        self.engine_s += busy_s
        self.energy_wh += energy_wh
        self.cost_usd += cost_usd

    def ttft_ms(self, share: float) -> float | None:
        """Return the time to the first token within which that share (0-1) of the requests with one had it, ms.

        None: none had one.
        """
        ordered = sorted(self._ttft_ms)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


@dataclass(frozen=True, slots=True)
class Usage:
    """The sums of the groups, and of all."""

    by: tuple[Property, ...]
    groups: Mapping[GroupKey, Sums]
    """In the order of their keys."""
    total: Sums
    names: Mapping[str, str]
    """Name of each key, by id: as it was last seen."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which requests count."""

    since: date | None = None
    """First day, UTC; None: from the first."""
    until: date | None = None
    """Last day, UTC; None: to the last."""
    key: str | None = None
    """Name or id of a key, or `NOBODY`; None: of all."""

    def has(self, entry: Entry) -> bool:
        """Return whether a request counts."""
        day = entry.time.date()
        if (self.since is not None and day < self.since) or (self.until is not None and day > self.until):
            return False
        return self.key is None or self.key in (entry.key, entry.key_name)


def summed(entries: Iterable[Entry], by: Sequence[Property]) -> Usage:
    """Return what requests took, by their properties."""
    groups: dict[GroupKey, Sums] = {}
    total, names = Sums(), dict[str, str]()
    tier_at = [place for place, one in enumerate(by) if one == "tier"]

    def at(key: list[str], tier: str) -> Iterator[Sums]:
        for place in tier_at:
            key[place] = tier
        yield groups.setdefault(tuple(key), Sums())
        yield total

    for entry in entries:
        names[entry.key] = entry.key_name
        key = [_READ[one](entry) for one in by]
        for sums in at(key, entry.tier):
            sums.begun(entry)
        for part in entry.parts:
            for sums in at(key, part.tier):
                sums.did(part.completion_tokens, part.busy_s, part.energy_wh, part.cost_usd)
    return Usage(tuple(by), dict(sorted(groups.items())), total, names)


def key_words(key: str, names: Mapping[str, str]) -> str:
    """Return how a key is shown: its name and its id."""
    name = names.get(key, NOBODY)
    return key if name == NOBODY else f"{name} ({key})"


_READ: Final[Mapping[Property, Callable[[Entry], str]]] = {
    "key": lambda entry: entry.key,
    "tier": lambda entry: entry.tier,
    "day": lambda entry: entry.time.date().isoformat(),
    "category": lambda entry: entry.category,
    "route": lambda entry: entry.route,
    "outcome": lambda entry: entry.outcome,
}
