"""In whose name a request asks for room, and how urgently."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final, NamedTuple


class Claim(NamedTuple):
    """Of one request."""

    tenant: str | None = None
    """Name of the key that it came with: during a rotation two keys have it; None: nobody was asked for one."""
    batch: bool = False
    """It only uses what others leave."""
    cache_salt: str | None = None
    """Its prompt shares cached beginnings only with prompts of this salt; None: with those of everybody without one."""


ANYBODY: Final = Claim()
_CURRENT: ContextVar[Claim] = ContextVar("claim", default=ANYBODY)


@contextlib.contextmanager
def claiming(claim: Claim) -> Iterator[None]:
    """Work for a request of this claim; tasks that begin meanwhile do too."""
    token = _CURRENT.set(claim)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_claim() -> Claim:
    """Return the claim of the request that this task works for."""
    return _CURRENT.get()
