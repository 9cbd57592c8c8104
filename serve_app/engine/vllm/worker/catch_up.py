"""Lets a draft model rest while nobody wants its drafts: what it missed, it reads in one pass when it is wanted again.

A draft model is a language model of its own: to draft after a text it needs the keys and values of the whole text.
vLLM's V2 runner has it read each token in the step that verifies it, so a step with K = 0 costs a forward pass of the
draft, and without CUDA graphs that is about as long as one of an 8B target. Here such steps cost nothing. The tokens
are read later, many at once, which costs hardly more than reading one.

Which tokens are missing is known exactly only on the device, as rejected drafts do not count. The CPU has an upper
bound, and what is too much in it is masked there, so nothing waits for the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.attention.backends.utils import PAD_SLOT_ID
from vllm.v1.worker.gpu.attn_utils import build_slot_mappings_by_layer
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor


def allot(missing: np.ndarray[Any, np.dtype[np.int64]], budget: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return how many of its missing tokens each request reads now: shortest first, so that most are done soonest.

    Args:
        missing: tokens by request.
        budget: most tokens for all together.
    """
    given = np.zeros_like(missing)
    for row in np.argsort(missing, kind="stable"):
        given[row] = min(int(missing[row]), budget)
        budget -= int(given[row])
    return given


class DraftCatchUp:
    """Knows what the draft model of V2's `StandaloneARSpeculator` has not read, and has it read that.

    Args:
        speculator: it.
        states: the runner's request states; the index of a request in them is its slot.
    """

    def __init__(self, speculator: Any, states: Any) -> None:
        self._speculator = speculator
        self._states = states
        slots = states.max_num_reqs
        self._read = torch.zeros(slots, dtype=torch.int64, device=states.device)
        """By slot: tokens from the begin that the draft has read without a gap."""
        self._missing = np.zeros(slots, dtype=np.int64)
        """By slot: upper bound of the tokens that it has not read."""
        self._owners: list[str | None] = [None] * slots
        self._computed = np.zeros(slots, dtype=np.int64)
        self._prefilling = np.zeros(slots, dtype=bool)

    def begin(self, batch: Any) -> None:
        """Take note of the requests that are new in this step, or begin again after a preemption."""
        slots, computed, prefilling = batch.idx_mapping_np, batch.num_computed_tokens_np, batch.is_prefilling_np
        others = np.fromiter(
            (self._owners[slot] != request_id for slot, request_id in zip(slots, batch.req_ids, strict=True)),
            dtype=bool,
            count=batch.num_reqs,
        )
        # The number of computed tokens is an upper bound, and falls when drafts are rejected, but not in a prefill.
        again = prefilling & (~self._prefilling[slots] | (computed < self._computed[slots]))
        self._computed[slots], self._prefilling[slots] = computed, prefilling
        fresh = others | again
        if not fresh.any():
            return
        for slot, request_id in zip(slots, batch.req_ids, strict=True):
            self._owners[slot] = request_id
        self._missing[slots[fresh]] = 0
        rows = async_tensor_h2d(np.nonzero(fresh)[0], device=self._read.device, dtype=torch.int64)
        # Cached tokens count as read: mostly a request with drafts has computed them.
        self._read[batch.idx_mapping[rows]] = self._begins(batch)[rows]

    def rested(self, batch: Any) -> None:
        """Take note that the draft model did not run in this step."""
        self._missing[batch.idx_mapping_np] += batch.num_scheduled_tokens

    def ran(self, batch: Any) -> None:
        """Take note that the draft model has read this step's tokens."""
        slots = batch.idx_mapping_np
        behind = self._missing[slots] > 0
        self._missing[slots[behind]] += batch.num_scheduled_tokens[behind]
        rows = async_tensor_h2d(np.nonzero(~behind)[0], device=self._read.device, dtype=torch.int64)
        index = batch.idx_mapping[rows]
        self._read[index] = self._states.num_computed_tokens.gpu[index].long()

    def catch_up(self, batch: Any) -> bool:
        """Have the draft model read what it missed before this step, at most as many tokens as a step may have.

        Return whether it missed anything.

        A request that has missed more goes on in the next step. Its drafts are poor until then, and only that.
        """
        speculator = self._speculator
        slots = batch.idx_mapping_np
        # Every request has a place in the batch, at the cost of one token, as the block tables are in its order.
        budget = speculator.max_num_tokens - batch.num_reqs
        given = allot(self._missing[slots], budget)
        if not given.any():
            return False
        self._missing[slots] -= given
        lengths = np.maximum(given, 1)
        starts = np.concatenate(([0], np.cumsum(lengths)))
        total = int(starts[-1])
        device = self._read.device
        rows = async_tensor_h2d(np.repeat(np.arange(batch.num_reqs), lengths), device=device, dtype=torch.int64)
        offsets = async_tensor_h2d(np.arange(total) - np.repeat(starts[:-1], lengths), device=device, dtype=torch.int64)
        lengths_there = async_tensor_h2d(lengths, device=device, dtype=torch.int64)
        index, ends = batch.idx_mapping, self._begins(batch)
        read = self._read[index]
        at = read[rows] + offsets
        wanted = at < ends[rows]
        positions = speculator.expanded_positions[:total]
        positions.copy_(at.clamp(0, speculator.max_model_len - 1))
        tokens = speculator.expanded_input_ids[:total]
        tokens.copy_(self._states.all_token_ids.gpu[index[rows], positions])
        buffers = speculator.input_buffers
        query_starts = async_tensor_h2d(starts.astype(np.int32), device=device, dtype=torch.int32)
        buffers.query_start_loc[: batch.num_reqs + 1].copy_(query_starts)
        buffers.seq_lens[: batch.num_reqs].copy_((read + lengths_there).clamp(max=speculator.max_model_len))
        mappings = speculator.block_tables.compute_slot_mappings(
            index,
            buffers.query_start_loc[: batch.num_reqs + 1],
            positions,
            total,
            out=speculator.expanded_slot_mappings,
        )
        mappings.masked_fill_(~wanted, PAD_SLOT_ID)
        metadata = speculator._build_attn_metadata(
            batch_desc=BatchExecutionDescriptor(cg_mode=CUDAGraphMode.NONE, num_tokens=total, num_reqs=batch.num_reqs),
            num_reqs=batch.num_reqs,
            query_start_loc_np=starts.astype(np.int32),
            seq_lens_cpu_upper_bound=batch.seq_lens_cpu_upper_bound[: batch.num_reqs]
            + torch.from_numpy(lengths.astype(np.int32)),
            step=0,
            slot_mappings=mappings,
        )
        by_layer = build_slot_mappings_by_layer(mappings, speculator.kv_cache_config)
        speculator._run_model(tokens, positions, metadata, by_layer, None)
        self._read[index] = torch.minimum(read + lengths_there, torch.maximum(read, ends))
        return True

    def _begins(self, batch: Any) -> torch.Tensor:
        """Return the position of each request's first token in this step."""
        begins: torch.Tensor = batch.positions[batch.query_start_loc[: batch.num_reqs].long()]
        return begins
