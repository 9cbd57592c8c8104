"""The fallback chain: the first step whose engine answers, with the reasons of those that did not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from router.registry import Step
from router.request import Message
from serve_app.engine.interface import Engine, EngineError, EngineStartError, plain_request
from serve_app.engine.vllm.process_output import ProcessOutput

EngineT = TypeVar("EngineT")

WARM_UP: Final = plain_request("warm-up", (Message(role="user", content="one two three one two three"),), 8)
"""What an engine must answer to be up. An engine's first steps also compile and allocate, for seconds."""


@dataclass(frozen=True, slots=True)
class StepFailure:
    """Why a step was left."""

    step: str
    reason: str

    def __str__(self) -> str:
        return f"{self.step}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Started(Generic[EngineT]):
    """The engine that works, its step, and the better steps that did not."""

    engine: EngineT
    step: Step
    failures: tuple[StepFailure, ...]


class NoStepWorksError(Exception):
    """Every step of a tier's chain failed; the message has all the reasons."""

    def __init__(self, tier: str, failures: Sequence[StepFailure]) -> None:
        super().__init__(f"no step of tier {tier} works: " + "; ".join(map(str, failures)))
        self.failures = tuple(failures)


async def start_first(
    tier: str,
    chain: Sequence[Step],
    missing_weights: Callable[[Step], str | None],
    start: Callable[[Step], Awaitable[EngineT]],
    on_progress: Callable[[Step, Sequence[StepFailure]], None],
) -> Started[EngineT]:
    """Try the steps in order and keep the first that starts.

    Args:
        tier: name, for the message.
        chain: steps, best first.
        missing_weights: why a step's weights cannot be used, or None.
        start: starts a step's engine; raises EngineStartError.
        on_progress: told the step about to be started and the failures so far.

    Raises:
        NoStepWorksError: when none starts.
    """
    failures: list[StepFailure] = []
    for step in chain:
        on_progress(step, tuple(failures))
        reason = missing_weights(step)
        if reason is None:
            try:
                return Started(await start(step), step, tuple(failures))
            except EngineStartError as error:
                reason = str(error)
        failures.append(StepFailure(step.name, reason))
    raise NoStepWorksError(tier, failures)


async def bring_up(start: Callable[[], Engine]) -> Engine:
    """Start an engine and have it answer once: its OpenAI application, its chat template, its first steps.

    Args:
        start: starts it; blocks.

    Raises:
        EngineStartError: with the root cause, whatever failed; what had started is shut down.
    """
    output = ProcessOutput.begin()
    engine: Engine | None = None
    try:
        engine = await asyncio.to_thread(start)
        await engine.openai_app()
        async for _ in engine.generate(WARM_UP):
            pass
    except Exception as error:
        # Whatever kind: model code, templates, kernels and drivers raise anything, and the next step may do without.
        if engine is not None:
            await engine.shutdown()
        raise EngineStartError(_reason(error, output)) from error
    return engine


def _reason(error: Exception, output: ProcessOutput) -> str:
    if isinstance(error, EngineStartError):
        return str(error)
    own = error.message if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
    return output.cause_of(own)
