"""The engine fallback: start the first chain entry whose engine answers, and keep the reasons of those that did not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from router.registry import ChainEntry
from router.request import Message
from serve_app.engine.interface import Engine, EngineError, EngineStartError, plain_request
from serve_app.engine.vllm.process_output import ProcessOutput

EngineT = TypeVar("EngineT")

WARM_UP: Final = plain_request("warm-up", (Message(role="user", content="one two three one two three"),), 8)
"""The first request of an engine, which is up when it has answered. First steps also compile and allocate, for
seconds."""


@dataclass(frozen=True, slots=True)
class EntryFailure:
    """Why an entry was skipped."""

    entry: str
    reason: str

    def __str__(self) -> str:
        return f"{self.entry}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Started(Generic[EngineT]):
    """The engine that works, its entry, and the better entries that did not."""

    engine: EngineT
    entry: ChainEntry
    failures: tuple[EntryFailure, ...]


class NoEntryWorksError(Exception):
    """Every entry of a tier's chain failed; the message has all reasons."""

    def __init__(self, tier: str, failures: Sequence[EntryFailure]) -> None:
        super().__init__(f"no entry of tier {tier} works: " + "; ".join(map(str, failures)))
        self.failures = tuple(failures)


async def start_first(
    tier: str,
    chain: Sequence[ChainEntry],
    missing_weights: Callable[[ChainEntry], str | None],
    start: Callable[[ChainEntry], Awaitable[EngineT]],
    on_progress: Callable[[ChainEntry, Sequence[EntryFailure]], None],
) -> Started[EngineT]:
    """Try the entries in order and keep the first that starts.

    Args:
        tier: name, for the message.
        chain: entries, best first.
        missing_weights: returns why an entry's weights cannot be used, or None.
        start: starts an entry's engine; raises EngineStartError.
        on_progress: called with the next entry and the failures so far.

    Raises:
        NoEntryWorksError: when none starts.
    """
    failures: list[EntryFailure] = []
    for entry in chain:
        on_progress(entry, tuple(failures))
        reason = missing_weights(entry)
        if reason is None:
            try:
                return Started(await start(entry), entry, tuple(failures))
            except EngineStartError as error:
                reason = str(error)
        failures.append(EntryFailure(entry.name, reason))
    raise NoEntryWorksError(tier, failures)


async def bring_up(start: Callable[[], Engine]) -> Engine:
    """Start an engine and have it answer once, which tries its OpenAI application, chat template and first steps.

    Args:
        start: starts it; blocks.

    Raises:
        EngineStartError: with the root cause. What had started is shut down.
    """
    output = ProcessOutput.begin()
    engine: Engine | None = None
    try:
        engine = await asyncio.to_thread(start)
        await engine.http_app()
        async for _ in engine.generate(WARM_UP):
            pass
    except Exception as error:
        # Any kind: model code, templates, kernels and drivers raise anything, and the next entry may work without them.
        if engine is not None:
            await engine.shutdown()
        raise EngineStartError(_reason(error, output)) from error
    return engine


def _reason(error: Exception, output: ProcessOutput) -> str:
    if isinstance(error, EngineStartError):
        return str(error)
    own = error.message if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
    return output.cause_of(own)
