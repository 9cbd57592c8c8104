"""Lets a draft model rest while nobody wants its drafts: what it missed, it reads in one pass when it is wanted again.

A draft model is a language model of its own: to draft after a text it needs the keys and values of the whole text.
vLLM's V2 runner has it read each token in the step that verifies it, so a step with K = 0 costs a forward pass of the
draft, and without CUDA graphs that is about as long as one of an 8B target. Here such steps cost nothing. The tokens
are read later, many at once, which costs hardly more than reading one.

Which tokens are missing is known exactly only on the device, as rejected drafts do not count. The CPU has an upper
bound, and what is too much in it is masked there, so nothing waits for the device.

What a request leaves unread outlives it: vLLM's prefix cache gives its blocks to others whose text begins alike, such
as the next turn of its conversation. So blocks with unread tokens are known, and the request that gets them reads them.

Where target and draft differ in their attention (a target with sliding windows), vLLM puts their layers into several
groups, each with blocks of its own, also of its own size. What counts is the blocks of the groups that hold layers of
the draft. A draft that has sliding windows itself loses blocks on the way, so it is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.attention.backends.utils import PAD_SLOT_ID
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec, UniformTypeKVCacheSpecs
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


class UnreadBlocks:
    """Which blocks of the KV cache hold tokens that the draft model has not read, and which blocks a request has."""

    def __init__(self) -> None:
        self._unread: set[int] = set()
        self._tables: dict[str, list[int]] = {}

    def gone(self, request_id: str) -> None:
        """Forget a request, but not what its blocks hold."""
        self._tables.pop(request_id, None)

    def took(self, request_id: str, blocks: Sequence[int], *, read: bool) -> None:
        """Add blocks with nothing in them yet to a request's.

        Args:
            request_id: the request.
            blocks: their ids.
            read: whether the draft model will read what comes into them, as far as is known.
        """
        self._tables.setdefault(request_id, []).extend(blocks)
        (self._unread.difference_update if read else self._unread.update)(blocks)

    def shares(self, request_id: str, blocks: Sequence[int]) -> None:
        """Begin a request with blocks of the prefix cache."""
        self._tables[request_id] = list(blocks)

    def mark(self, request_id: str, first: int, last: int | None = None, *, read: bool) -> None:
        """Note whether the request's blocks are read, from the `first` to before the `last` one; None: to its end."""
        blocks = self._tables.get(request_id, ())[first:last]
        (self._unread.difference_update if read else self._unread.update)(blocks)

    def read(self, request_id: str, blocks: int) -> int:
        """Return how many of the request's first blocks, at most so many, are read without a gap."""
        table = self._tables.get(request_id, ())[:blocks]
        return next((place for place, block in enumerate(table) if block in self._unread), blocks)


class DraftGroup(NamedTuple):
    """A group of the KV cache that holds layers of the draft model."""

    place: int
    """Its place among the groups."""
    block_size: int
    """Tokens of a block."""
    blocks: UnreadBlocks


def draft_groups(groups: Sequence[KVCacheGroupSpec], layers: Collection[str]) -> list[DraftGroup]:
    """Return the groups that hold the draft model's layers.

    Args:
        groups: all groups of the KV cache, in vLLM's order.
        layers: names of the draft model's attention layers.

    Raises:
        RuntimeError: a layer whose blocks do not keep the whole text.
    """
    found = []
    for place, group in enumerate(groups):
        own = [name for name in group.layer_names if name in layers]
        spec = group.kv_cache_spec
        for name in own:
            of_layer = spec.kv_cache_specs[name] if isinstance(spec, UniformTypeKVCacheSpecs) else spec
            if not isinstance(of_layer, FullAttentionSpec):
                raise RuntimeError(
                    f"the draft model's layer {name} has a {type(of_layer).__name__}, but a draft model that rests "
                    "needs the keys and values of the whole text: set engine_args.disable_hybrid_kv_cache_manager to "
                    "true, with which vLLM keeps them, or take a draft model with full attention"
                )
        if own:
            found.append(DraftGroup(place, spec.block_size, UnreadBlocks()))
    return found


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
        self._gap = np.zeros(slots, dtype=np.int64)
        """By slot: lower bound of the position of the first of these."""
        self._owners: list[str | None] = [None] * slots
        self._computed = np.zeros(slots, dtype=np.int64)
        self._prefilling = np.zeros(slots, dtype=bool)

    def follow(self, scheduled: Any) -> None:
        """Take note of the blocks that requests get or leave in a step, before it runs."""
        for group in self._groups:
            blocks = group.blocks
            for request_id in {*scheduled.finished_req_ids, *(scheduled.preempted_req_ids or ())}:
                blocks.gone(request_id)
            for new in scheduled.scheduled_new_reqs:
                cached, ids = -(-new.num_computed_tokens // group.block_size), new.block_ids[group.place]
                blocks.shares(new.req_id, ids[:cached])
                blocks.took(new.req_id, ids[cached:], read=True)
            cached_requests = scheduled.scheduled_cached_reqs
            for request_id, more in zip(cached_requests.req_ids, cached_requests.new_block_ids, strict=True):
                if more is not None:
                    slot = self._states.req_id_to_index[request_id]
                    blocks.took(request_id, more[group.place], read=not self._missing[slot])

    @cached_property
    def _groups(self) -> list[DraftGroup]:
        # The speculator knows them only when the KV cache has been laid out.
        speculator = self._speculator
        return draft_groups(speculator.kv_cache_config.kv_cache_groups, speculator.draft_attn_layer_names)

    def _read_without_gap(self, request_id: str, tokens: int) -> int:
        """Return how many of the request's first tokens, at most so many, lie in read blocks without a gap."""
        read = (
            group.block_size * group.blocks.read(request_id, -(-tokens // group.block_size)) for group in self._groups
        )
        return min(tokens, *read)

    def _mark(self, request_id: str, first: int, last: int | None = None, *, read: bool) -> None:
        """Note whether the blocks are read that hold a request's tokens from the `first` on, up to the one that holds
        the `last`; None: to its end."""
        for group in self._groups:
            size = group.block_size
            group.blocks.mark(request_id, first // size, None if last is None else last // size, read=read)

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
        for row in np.nonzero(fresh)[0]:
            slot, request_id, cached = slots[row], batch.req_ids[row], int(computed[row])
            self._owners[slot] = request_id
            self._gap[slot] = self._read_without_gap(request_id, cached)
            self._missing[slot] = cached - self._gap[slot]
            if self._missing[slot]:
                self._mark(request_id, self._gap[slot], read=False)
        rows = async_tensor_h2d(np.nonzero(fresh)[0], device=self._read.device, dtype=torch.int64)
        read = async_tensor_h2d(self._gap[slots[fresh]], device=self._read.device, dtype=torch.int64)
        self._read[batch.idx_mapping[rows]] = read

    def rested(self, batch: Any) -> None:
        """Take note that the draft model did not run in this step."""
        slots = batch.idx_mapping_np
        for row in np.nonzero(self._missing[slots] == 0)[0]:
            # As many of the tokens before may have been rejected drafts.
            self._gap[slots[row]] = max(0, batch.num_computed_tokens_np[row] - self._speculator.num_speculative_steps)
            self._mark(batch.req_ids[row], self._gap[slots[row]], read=False)
        self._missing[slots] += batch.num_scheduled_tokens

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
        for row in np.nonzero(given)[0]:
            slot = slots[row]
            first = self._gap[slot]
            self._gap[slot] += given[row]
            self._mark(batch.req_ids[row], first, self._gap[slot] if self._missing[slot] else None, read=True)
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
