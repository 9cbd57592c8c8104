"""Item streams that a test scripts, and a reader of the SSE bytes that come out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import orjson

from serve_app.api.sse import token_events
from serve_app.engine.interface import Token, TokenBatch, TokenStep, pack_ids

ItemT = TypeVar("ItemT")


def step(*tokens: Token) -> TokenStep:
    """What an engine streams for an engine step of these tokens."""
    return TokenStep(list(tokens), [token.token_id for token in tokens], 0.0)


def batch(*tokens: Token) -> TokenBatch:
    """What a replica streams of it."""
    return TokenBatch(pack_ids(token.token_id for token in tokens), 0.0, token_events(tokens))


@dataclass(frozen=True)
class Wait:
    """The stream is silent for this long, s."""

    seconds: float


@dataclass
class Script(Generic[ItemT]):
    """A stream of scripted items: a `Wait` pauses it, an exception ends it by being raised.

    It records whether it was opened and closed, and how many items were taken.
    """

    items: Sequence[ItemT | Wait | Exception]
    opened: bool = False
    closed: bool = False
    taken: list[ItemT] = field(default_factory=list)

    async def stream(self) -> AsyncGenerator[ItemT, None]:
        self.opened = True
        try:
            for item in self.items:
                if isinstance(item, Wait):
                    await asyncio.sleep(item.seconds)
                elif isinstance(item, Exception):
                    raise item
                else:
                    self.taken.append(item)
                    yield item
        finally:
            self.closed = True


async def collect(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


def sse_events(raw: bytes) -> list[tuple[str, dict[str, Any]]]:
    """(type, data) of each event of `/api/inference`; comments are ("ping", {}).

    Fails unless the bytes are whole events: one line each, ended by a blank line.
    """
    assert raw.endswith(b"\n\n")
    events: list[tuple[str, dict[str, Any]]] = []
    for block in raw.removesuffix(b"\n\n").split(b"\n\n"):
        assert b"\n" not in block
        if block == b": ping":
            events.append(("ping", {}))
            continue
        assert block.startswith(b"data: ")
        event = orjson.loads(block.removeprefix(b"data: "))
        assert set(event) == {"type", "data"}
        events.append((event["type"], event["data"]))
    return events
