"""What our worker adds to one of vLLM's that has a V2 model runner: drafts as asked for, and measured times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.outputs import AsyncModelRunnerOutput

from serve_app.engine.vllm.worker.step_clock import StepClock, TimedOutput, with_times

if TYPE_CHECKING:
    from serve_app.engine.vllm.worker.drafting import V2Drafting


class V2DraftingMixin:
    """Comes before vLLM's worker among the bases."""

    vllm_config: Any
    model_runner: Any
    _clock: StepClock
    _drafting: V2Drafting

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """See vLLM."""
        # V2's modules need Triton, so only a worker that has it imports them.
        from serve_app.engine.vllm.worker.drafting import V2Drafting

        if self.vllm_config.additional_config.speculation.drafts_both_ways:
            _keep_texts_on_the_device(self.model_runner.req_states)
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


def _keep_texts_on_the_device(states: Any) -> None:
    """Hold the requests' token ids in the device's memory, as vLLM does for `ngram_gpu`.

    Otherwise they are in the host's, and a lookup beside an own draft reads whole texts over PCIe at every step.

    Args:
        states: a V2 runner's, before its model is loaded.
    """
    from vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor

    size = states.max_num_reqs, states.max_model_len
    states.all_token_ids = StagedWriteTensor(size, dtype=torch.int32, device=states.device)
