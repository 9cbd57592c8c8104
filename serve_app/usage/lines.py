"""Lines of the request log (`serve_app/api/request_log.py`), read back. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import orjson

NOBODY: Final = "-"
"""Stands for what a line does not name: no key was asked for, no tier was chosen."""
ESTIMATED: Final = "estimated"
"""`counted` of a line with an estimate of what an engine did since its last token, since it could not say more."""


_MOST: Final = 1e12
"""No request has more of anything: tokens, seconds, Wh, USD, ms. So no sum of lines that somebody made up overflows."""


class NotALineError(Exception):
    """These bytes are no line of a request log."""


class Part(NamedTuple):
    """What one tier did for a request."""

    tier: str
    completion_tokens: int
    busy_s: float
    """Its share of the engine's busy time, s."""
    energy_wh: float
    cost_usd: float


class Entry(NamedTuple):
    """One request that has ended."""

    time: datetime
    """When it ended, UTC."""
    key: str
    """Id of the key that asked, or `NOBODY`."""
    key_name: str
    route: str
    category: str
    outcome: str
    """`ok`, `client_left`, or the code of its error."""
    tier: str
    """That began it, or `NOBODY`."""
    prompt_tokens: int
    agent_usd: float
    """What the router agent's calls cost."""
    ttft_ms: float | None
    """None: it had no token."""
    estimated: bool
    """Whether what an engine did since its last token is estimated."""
    parts: tuple[Part, ...]


def read_entry(raw: bytes) -> Entry:
    """Return the request of a line.

    Raises:
        NotALineError: it is none.
    """
    try:
        line = orjson.loads(raw)
        return _entry(line)
    except (orjson.JSONDecodeError, ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise NotALineError from error


def _entry(line: Mapping[str, Any]) -> Entry:
    tier = _word(line["tier"])
    # Lines of earlier versions have no legs.
    legs = line.get("legs") or [{**line, "tier": tier}]
    return Entry(
        time=_time(line["time"]),
        key=_word(line.get("key")),
        key_name=_word(line.get("key_name")),
        route=_word(line["route"]),
        category=_word(line["category"]),
        outcome=_word(line["outcome"]),
        tier=tier,
        prompt_tokens=_count(line.get("prompt_tokens")),
        agent_usd=_amount(line.get("agent_usd")),
        ttft_ms=None if line.get("ttft_ms") is None else _amount(line["ttft_ms"]),
        estimated=line.get("counted") == ESTIMATED,
        parts=tuple(
            Part(
                _word(leg["tier"]),
                _count(leg.get("completion_tokens")),
                _amount(leg.get("busy_s")),
                _amount(leg.get("energy_wh")),
                _amount(leg.get("cost_usd")),
            )
            for leg in legs
        ),
    )


def _time(value: str) -> datetime:
    """Return a time in UTC. One without a zone is none of ours, and nobody knows which day it is."""
    time = datetime.fromisoformat(value)
    if time.tzinfo is None:
        raise ValueError
    return time.astimezone(UTC)


def _word(value: object) -> str:
    if value is None:
        return NOBODY
    if not isinstance(value, str):
        raise TypeError
    # A file of another program may hold anything, also what a terminal obeys.
    return "".join(character if character.isprintable() else "?" for character in value)


def _count(value: object) -> int:
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST:
        raise TypeError
    return value


def _amount(value: object) -> float:
    if value is None:
        return 0.0
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _MOST:
        raise TypeError
    return float(value)
