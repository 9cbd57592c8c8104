"""How our worker drafts on vLLM's V2 model runner: as many tokens as are asked for, in the way that each request wants.

The runner calls one object, its speculator, once a step. Here stands in front of it what vLLM 0.32 lacks:

- A draft model drafts K tokens, not always k_max, and rests where K is 0 (`catch_up.py`). An EAGLE head honours K
  itself. At K = 0 it still reads the step's hidden states, in one pass of its one layer: they could not be had later.
- The scheduler says on its output which requests need no draft of the entry's own: those that never draft and, in an
  entry with two ways to draft, those that take n-gram lookup. The entry's own draft runs if another request of the step
  wants it, and the rows of those that look up are replaced. A head that rests because nobody wants it has gaps
  afterwards. Its drafts are then poorer for the requests that were under way. An entry with one way to draft reads
  every prompt, as others may find it in the prefix cache.
- The time that drafting takes (`step_clock.py`).

A lookup that finds nothing repeats the last token, as vLLM's own does: the number of drafts was decided when the step
was scheduled, before the lookup. The engine verifies these tokens, so they count as drafts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.spec_decode.eagle.speculator import EagleSpeculator
from vllm.v1.worker.gpu.spec_decode.ngram.speculator import NgramGPUSpeculator
from vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator import StandaloneARSpeculator

from serve_app.engine.vllm.controller_config import ControllerConfig
from serve_app.engine.vllm.ngram_lookup import mixed_drafts, ngram_drafts
from serve_app.engine.vllm.step_record import DRAFTS_ATTRIBUTE, OWN_DEPTH_ATTRIBUTE
from serve_app.engine.vllm.worker.catch_up import DraftCatchUp
from serve_app.engine.vllm.worker.step_clock import StepClock


class V2Drafting:
    """Stands in front of the speculator of a V2 runner whose model is loaded.

    Args:
        runner: it.
        clock: takes the times.

    Raises:
        RuntimeError: a runner or speculator that this is not written for.
    """

    def __init__(self, runner: Any, clock: StepClock) -> None:
        speculator = getattr(runner, "speculator", None)
        written_for = StandaloneARSpeculator | EagleSpeculator | NgramGPUSpeculator
        if not isinstance(runner, GPUModelRunner) or not isinstance(speculator, written_for):
            raise RuntimeError(
                "this worker is written for vLLM's V2 model runner with n-gram lookup, a draft model or an EAGLE "
                f"head, got {type(runner).__name__} with {type(speculator).__name__}"
            )
        if speculator.draft_logits is not None:
            raise RuntimeError("this worker is written for draft_sample_method: greedy")
        self._runner, self._speculator, self._clock = runner, speculator, clock
        self._own, self._sample = speculator.propose, runner.sample
        config = runner.vllm_config.additional_config
        self._both_ways = isinstance(config, ControllerConfig) and config.speculation.drafts_both_ways
        self._lookup_only = isinstance(speculator, NgramGPUSpeculator)
        self._catch_up = (
            DraftCatchUp(speculator, runner.req_states) if isinstance(speculator, StandaloneARSpeculator) else None
        )
        self._without_own: frozenset[str] = frozenset()
        self._own_depth = 0
        self._caught_up = False
        speculator.propose, runner.sample = self.propose, self.sample

    def begin(self, scheduler_output: Any) -> None:
        """Begin a step. Those of vLLM's own warm-up were not scheduled, so they do not say who drafts."""
        self._without_own = getattr(scheduler_output, DRAFTS_ATTRIBUTE, frozenset())
        self._own_depth = getattr(scheduler_output, OWN_DEPTH_ATTRIBUTE, scheduler_output.num_spec_tokens_to_schedule)
        if self._catch_up is not None:
            self._catch_up.follow(scheduler_output)
        self._clock.begin()

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        """See the runner's method."""
        output = self._sample(*args, **kwargs)
        self._clock.sampled()
        return output

    @torch.inference_mode()
    def propose(self, input_batch: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """See the speculator's method; its shape is (requests, k_max). vLLM clears the columns beyond K."""
        if kwargs.get("dummy_run"):
            own: torch.Tensor = self._own(input_batch, *args, **kwargs)
            return own
        k = kwargs["num_speculative_tokens"]
        self._caught_up = False
        without_own = [request_id in self._without_own for request_id in input_batch.req_ids]
        wanted = not all(without_own) or (input_batch.has_prefill and not self._both_ways)
        depth = self._own_depth if wanted else 0
        drafts = self._own_drafts(input_batch, *args, wanted=wanted, **{**kwargs, "num_speculative_tokens": depth})
        if k and self._both_ways and any(without_own):
            rows = async_tensor_h2d(np.array(without_own), device=drafts.device, dtype=torch.bool)
            mixed = mixed_drafts(drafts[:, :k], self._look_up(input_batch, k), rows)
            drafts = torch.nn.functional.pad(mixed, (0, drafts.shape[1] - k))
        if wanted:  # else a head did not run, which is not what drafting at depth 0 costs
            self._clock.drafted(depth, alone=not (input_batch.has_prefill or self._caught_up))
        return drafts

    def _own_drafts(self, batch: Any, *args: Any, wanted: bool, **kwargs: Any) -> torch.Tensor:
        """Return drafts of the entry's own, with anything in the columns beyond their number.

        Args:
            batch: the step's.
            args: of the speculator's method.
            wanted: whether any request of the step takes the entry's own drafts, now or later.
            kwargs: of the speculator's method.
        """
        k = kwargs["num_speculative_tokens"]
        speculator, catch_up = self._speculator, self._catch_up
        if catch_up is not None:
            catch_up.begin(batch)
            # A prompt is read while it is processed, so that cached prompts of others have been read too.
            if not wanted or (not k and not batch.has_prefill):
                catch_up.rested(batch)
                return self._no_drafts(batch)
            if k:
                self._caught_up = catch_up.catch_up(batch)
            width = speculator.num_speculative_steps
            # vLLM's loop runs this many steps. It has no graphs, and reads the attribute nowhere else meanwhile.
            speculator.num_speculative_steps = max(1, k)
            try:
                self._own(batch, *args, **kwargs)
            finally:
                speculator.num_speculative_steps = width
            catch_up.ran(batch)
            drafts: torch.Tensor = speculator.draft_tokens[: batch.num_reqs]
            return drafts
        if not wanted or (self._lookup_only and not k):
            return self._no_drafts(batch)
        own: torch.Tensor = self._own(batch, *args, **kwargs)
        return own

    def _no_drafts(self, batch: Any) -> torch.Tensor:
        states = self._runner.req_states.draft_tokens
        return torch.full_like(states[: batch.num_reqs], -1)

    def _look_up(self, batch: Any, k: int) -> torch.Tensor:
        """Return k drafts by lookup for each request."""
        states = self._runner.req_states
        # The tokens sampled in this step are in the text already.
        longest = int(batch.seq_lens_cpu_upper_bound[: batch.num_reqs].max()) + 1
        text = states.all_token_ids.gpu[batch.idx_mapping, : min(longest, states.max_model_len)]
        lengths = states.total_len.gpu[batch.idx_mapping].clamp(1, text.shape[1])
        return ngram_drafts(text, lengths, k).long()
