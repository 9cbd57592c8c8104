"""The fallback chain: the first step whose engine starts, with the reasons of those that did not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from router.tiers import Step
from serve_app.engine.interface import EngineStartError

EngineT = TypeVar("EngineT")


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


def start_first(
    tier: str,
    chain: Sequence[Step],
    missing_weights: Callable[[Step], str | None],
    start: Callable[[Step], EngineT],
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
                return Started(start(step), step, tuple(failures))
            except EngineStartError as error:
                reason = str(error)
        failures.append(StepFailure(step.name, reason))
    raise NoStepWorksError(tier, failures)
