"""Measures in the worker how long a step's forward pass and its drafting take on the device.

On a GPU the marks are CUDA events on vLLM's main stream, read when they are done anyway: nothing waits for the device.
Without a GPU work ends before the call that starts it returns, and the marks are clock times.
"""

from __future__ import annotations

import logging
import time
from typing import Any, NamedTuple, Protocol

import torch
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

from cluster.rate_limited_log import RateLimitedLog
from serve_app.engine.vllm.step_times import TIMES_ATTRIBUTE, StepTimes

_log = RateLimitedLog(logging.getLogger(__name__))


class Mark(Protocol):
    """A point in the device's work."""

    def seconds_until(self, later: Any) -> float:
        """Return the time from here to a later mark, s. Both must be reached."""


class ClockMark:
    """A mark for a device that works in the caller's time."""

    def __init__(self) -> None:
        self._at_s = time.perf_counter()

    def seconds_until(self, later: ClockMark) -> float:
        """See `Mark`."""
        return later._at_s - self._at_s


class CudaMark:
    """A mark on the current CUDA stream."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record()

    def seconds_until(self, later: CudaMark) -> float:
        """See `Mark`."""
        milliseconds: float = self._event.elapsed_time(later._event)
        return milliseconds / 1e3


class Drafted(NamedTuple):
    """A drafting that was put on the device."""

    began: Mark
    ended: Mark
    depth: int
    alone: bool
    """Whether it did nothing else; else its time is not that of so many iterations."""


class Marks(NamedTuple):
    """The marks of a step whose output is under way."""

    began: Mark
    sampled: Mark
    drafted: Drafted | None
    """The drafting before the step."""
    ended: Mark | None = None
    """The end of the work of the step before, its drafting too; None: there was none."""

    def times(self) -> StepTimes:
        """Return the times. The sampled tokens must have arrived."""
        drafted = self.drafted
        return StepTimes(
            self.began.seconds_until(self.sampled),
            drafted.began.seconds_until(drafted.ended) if drafted and drafted.alone else None,
            drafted.depth if drafted else 0,
            self.ended.seconds_until(self.began) if self.ended else 0.0,
        )


class StepClock:
    """Marks the steps of one worker, in the order in which they are put on the device.

    Args:
        device: of the worker.
    """

    def __init__(self, device: torch.device) -> None:
        self._mark: type[ClockMark] | type[CudaMark] = CudaMark if device.type == "cuda" else ClockMark
        self._began: Mark | None = None
        self._sampled: Mark | None = None
        self._before: Drafted | None = None
        self._drafted: Drafted | None = None
        self._ended_before: Mark | None = None
        self._ended: Mark | None = None

    def begin(self) -> None:
        """Mark the step's begin. Its first work waits for the drafting of the step before, which is not in it then."""
        if self._began is not None and self._sampled is None:
            # The step before had no tokens: vLLM has sampled nothing, and has taken no output.
            self._ended = self._began
        else:
            self._before, self._drafted = self._drafted, None
        self._began, self._sampled = self._mark(), None
        self._ended_before = self._ended

    def sampled(self) -> None:
        """Mark that the step's tokens are sampled, before they are copied."""
        self._sampled = self._ended = self._mark()

    def drafted(self, depth: int, *, alone: bool) -> None:
        """Mark that drafts are made, in that many iterations. Drafting begins where the tokens are sampled.

        Args:
            depth: iterations.
            alone: whether the draft model did nothing else, such as to read a prompt.
        """
        if self._sampled is not None:
            self._ended = self._mark()
            self._drafted = Drafted(self._sampled, self._ended, depth, alone)

    def take(self) -> Marks | None:
        """Return the marks of the step; None: it ran no model."""
        if self._began is None or self._sampled is None:
            return None
        marks = Marks(self._began, self._sampled, self._before, self._ended_before)
        self._began = None
        return marks


class TimedOutput(AsyncModelRunnerOutput):
    """vLLM's output of a step under way, with the step's times once it has arrived."""

    def __init__(self, output: AsyncModelRunnerOutput, marks: Marks) -> None:
        self._output = output
        self._marks = marks

    def get_output(self) -> ModelRunnerOutput:
        """See vLLM. Another thread may call it while the next step is under way."""
        return with_times(self._output.get_output(), self._marks)


def with_times(output: ModelRunnerOutput, marks: Marks) -> ModelRunnerOutput:
    """Return the output with the step's times on it; without them if the device's clock fails, as torch's events do."""
    try:
        times = marks.times()
    except RuntimeError as error:
        # Raised here it would end the engine for everybody.
        _log.warning("clock", "the time of a step is not known: %s", error)
    else:
        setattr(output, TIMES_ATTRIBUTE, times)
    return output
