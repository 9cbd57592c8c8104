"""What our worker adds to one of vLLM's that has a V2 model runner: drafts as asked for, and measured times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.outputs import AsyncModelRunnerOutput

from serve_app.engine.vllm.worker.step_clock import StepClock, TimedOutput, with_times

if TYPE_CHECKING:
    from serve_app.engine.vllm.worker.drafting import V2Drafting


class V2DraftingMixin:
    """Comes before vLLM's worker among the bases."""

    model_runner: Any
    _clock: StepClock
    _drafting: V2Drafting

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """See vLLM."""
        # V2's modules need Triton, so only a worker that has it imports them.
        from serve_app.engine.vllm.worker.drafting import V2Drafting

        super().load_model(*args, **kwargs)  # type: ignore[misc]
        self._clock = StepClock(self.model_runner.device)
        self._drafting = V2Drafting(self.model_runner, self._clock)

    def execute_model(self, scheduler_output: Any) -> Any:
        """See vLLM."""
        self._drafting.begin(scheduler_output)
        return super().execute_model(scheduler_output)  # type: ignore[misc]

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        """See vLLM."""
        output = super().sample_tokens(*args, **kwargs)  # type: ignore[misc]
        marks = self._clock.take()
        if marks is None or output is None:
            return output
        return TimedOutput(output, marks) if isinstance(output, AsyncModelRunnerOutput) else with_times(output, marks)
