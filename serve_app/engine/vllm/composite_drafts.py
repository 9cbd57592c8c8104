"""Two proposers in one engine: the entry's own draft model or EAGLE head, and n-gram lookup. Runs in the worker.

The scheduler writes on its output which of them drafts for which request of the step (`scheduler.py`), so the worker
keeps no state that could disagree. The draft model runs on the whole batch if any request needs it. If none does it
does not run, and its KV cache gets holes: later drafts for requests that ran meanwhile are poorer. That is harmless, as
drafts are only proposals.

Written for vLLM's V1 model runner.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.spec_decode.draft_model import DraftModelProposer
from vllm.v1.spec_decode.eagle import EagleProposer
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker

from serve_app.engine.vllm.ngram_lookup import TokenHistory, mixed_drafts, mixed_probabilities, ngram_drafts
from serve_app.engine.vllm.step_record import DRAFTS_ATTRIBUTE, OWN_DEPTH_ATTRIBUTE


class CompositeGpuWorker(Worker):
    """vLLM's GPU worker with both proposers (`worker_cls`)."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """See vLLM."""
        super().load_model(*args, **kwargs)
        compose_drafts(self.model_runner)


def compose_drafts(runner: Any) -> None:
    """Have the runner's drafter make n-gram drafts for the requests that need no own ones.

    Raises:
        RuntimeError: a runner or drafter that this is not written for.
    """
    drafter = getattr(runner, "drafter", None)
    if not isinstance(runner, GPUModelRunner) or not isinstance(drafter, DraftModelProposer | EagleProposer):
        raise RuntimeError(
            "drafting in both ways (`speculation.drafts`, `floor`) is written for vLLM's V1 model runner "
            "(VLLM_USE_V2_MODEL_RUNNER=0) with a draft model or EAGLE head, "
            f"got {type(runner).__name__} with {type(drafter).__name__}"
        )
    composite = _Composite(runner, drafter)
    runner.propose_draft_token_ids = composite.propose_draft_token_ids
    drafter.propose = composite.propose


class _Composite:
    """Wraps the runner's method to draft and the drafter."""

    def __init__(self, runner: Any, drafter: Any) -> None:
        self._runner, self._drafter = runner, drafter
        self._own_drafting, self._own = runner.propose_draft_token_ids, drafter.propose
        self._without_own: frozenset[str] = frozenset()
        self._own_depth = 0
        self._history: TokenHistory | None = None

    def propose_draft_token_ids(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """See the runner's method."""
        self._without_own = getattr(scheduler_output, DRAFTS_ATTRIBUTE)
        self._own_depth = getattr(scheduler_output, OWN_DEPTH_ATTRIBUTE)
        return self._own_drafting(scheduler_output, *args, **kwargs)

    def propose(self, **inputs: Any) -> torch.Tensor:
        """See the drafter's method; the runner calls it by keywords."""
        metadata, tokens = inputs["common_attn_metadata"], inputs["target_token_ids"]
        history = self._history = self._history or self._new_history()
        history.write(metadata.slot_mapping[: len(tokens)], tokens)
        requests = self._runner.input_batch.req_ids
        looked_up = [request in self._without_own for request in requests]
        if not any(looked_up):
            return self._own(**inputs)
        k = inputs["num_speculative_tokens"]
        drafter = self._drafter
        if all(looked_up):
            # The drafter itself would set these; lookups have no probabilities.
            drafter.num_speculative_tokens, drafter._last_draft_probs = k, None
            return self._look_up(history, inputs)
        drafts = self._look_up(history, inputs)  # first: the drafter may change the metadata
        own = self._own(**inputs | {"num_speculative_tokens": self._own_depth})
        rows = async_tensor_h2d(looked_up, device=own.device, dtype=torch.bool)
        if drafter._last_draft_probs is not None:
            drafter._last_draft_probs = mixed_probabilities(drafter._last_draft_probs, drafts, rows)
        return mixed_drafts(own, drafts, rows)

    def _look_up(self, history: TokenHistory, inputs: Mapping[str, Any]) -> torch.Tensor:
        """Return the n-gram drafts of every request, shape (requests, k)."""
        metadata, k = inputs["common_attn_metadata"], inputs["num_speculative_tokens"]
        last = inputs["token_indices_to_sample"]
        if last is None:
            last = metadata.query_start_loc[1:] - 1
        positions = inputs["target_positions"]
        lengths = (positions[0] if positions.dim() == 2 else positions)[last].long() + 1
        text = history.read(metadata.block_table_tensor[: len(last)], metadata.max_seq_len)
        # The token that was just sampled has no slot yet.
        text = torch.cat([text, torch.zeros_like(text[:, :1])], dim=1)
        text.scatter_(1, lengths.unsqueeze(1), inputs["next_token_ids"].to(text.dtype).unsqueeze(1))
        return ngram_drafts(text, lengths + 1, k).long()

    def _new_history(self) -> TokenHistory:
        """The KV cache exists only after the model is loaded."""
        group = self._drafter.kv_cache_gid
        config = self._runner.kv_cache_config
        slots = config.num_blocks * config.kv_cache_groups[group].kv_cache_spec.block_size
        block_size = self._runner.input_batch.block_table[group].block_size
        return TokenHistory(slots // block_size, block_size, self._runner.device)
