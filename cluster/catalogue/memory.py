"""What one engine needs in a card's memory, against what the profile lets it have. Pure arithmetic, nothing measured.

vLLM takes `gpu_memory_utilization` x total memory as an engine's budget (`v1/worker/utils.py: request_memory`),
measures weights and activations in a profiling run, and gives what is left to the KV cache (`v1/worker/gpu_worker.py`).
It does not start if the rest is smaller than one request of `max_model_len`. The CUDA context of each process lies
outside the budget, because the first measurement is taken when it already exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor
from typing import Final

from cluster.catalogue.types import GIB, Catalogue, Gpu, Model, catalogue
from router.registry import ChainEntry, Profile, Tier

DEFAULT_UTILIZATION: Final = 0.92
"""vLLM's `gpu_memory_utilization` (`config/cache.py`)."""
DEFAULT_BATCHED_TOKENS: Final = 8192
"""vLLM's `max_num_batched_tokens` on cards of 70 GiB and more; 2048 on others, so this is the larger."""
MEAN_REQUEST_TOKENS: Final = 640
"""Tokens in the KV cache of a mean request: a prompt of 512 and half of an answer of 256."""
MEAN_REQUESTS: Final = 16
_BLOCK: Final = 16  # tokens of a KV block
_WORKSPACE_GIB: Final = 0.4
"""Buffers of attention and GEMM kernels (cuBLAS, Marlin, FlashInfer's 394 MiB)."""
_NCCL_GIB: Final = {1: 0.0, 2: 0.34, 4: 0.39, 8: 0.39}
"""NCCL's buffers by tensor parallel size: `nccl_mem` of aiconfigurator-core 0.12.0."""
_GRAPH_GIB_PER_LAYER: Final = 0.00015
_GRAPHS_GIB: Final = 0.25
"""CUDA graphs: a shared pool, and 0.15 MiB a layer and graph (~: 67 graphs of a 32-layer model take 0.5-0.6 GiB)."""
_PIECEWISE_GRAPHS: Final = 51
"""vLLM's default sizes up to 512 tokens: 1, 2, 4, 8, 16, ... in steps of 8, from 256 on in steps of 16."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Memory of one engine on each of its cards, GiB."""

    weights: float
    draft: float
    graphs: float
    activations: float  # peak of the profiling run, with the kernels' workspaces and NCCL's buffers
    kv: float  # the larger of one full context and 16 mean requests
    allowed: float  # `gpu_memory_utilization` x card

    @property
    def total(self) -> float:
        """What the engine needs."""
        return self.weights + self.draft + self.graphs + self.activations + self.kv

    @property
    def fits(self) -> bool:
        """Whether it gets that much."""
        return self.total <= self.allowed

    def __str__(self) -> str:
        parts = {name: getattr(self, name) for name in ("weights", "draft", "graphs", "activations", "kv")}
        listed = ", ".join(f"{name} {value:.1f}" for name, value in parts.items() if value)
        return f"needs {self.total:.1f} GiB ({listed}) of {self.allowed:.1f} GiB"


def context_gib(gpu: Gpu) -> float:
    """Return the CUDA context and loaded kernels of a process, GiB, outside vLLM's budget (~: grows with the card)."""
    return 0.4 if gpu.memory_gib < 40 else 0.6


def utilization(share: float, gpu: Gpu) -> float:
    """Return the `gpu_memory_utilization` of an engine with that share of a card, or with a whole one (1).

    Shares that add up to a card's 1 leave each process its CUDA context.
    """
    return min(DEFAULT_UTILIZATION, floor(1000 * (share - context_gib(gpu) / gpu.memory_gib)) / 1000)


def host_gib(cards: int) -> float:
    """Return the memory of the machine that an engine on so many cards takes, GiB, besides its weights, which are files
    that are mapped. Estimated: the processes of an engine, and of each further worker (docs/gpus.md)."""
    return 8.0 + 4.0 * (cards - 1)


def default_utilization(tier: Tier, known: Catalogue | None = None) -> float:
    """Return the `gpu_memory_utilization` of an entry that says none."""
    gpu = (known or catalogue()).gpus.get(tier.gpu or "")
    if tier.gpus >= 1:
        return DEFAULT_UTILIZATION
    return tier.gpus if gpu is None else max(0.01, utilization(tier.gpus, gpu))


def share_of(need_gib: float, gpu: Gpu) -> float:
    """Return the smallest share of a card, in hundredths, whose `utilization` allows that much."""
    share = ceil(100 * (need_gib + context_gib(gpu)) / gpu.memory_gib) / 100
    while utilization(share, gpu) * gpu.memory_gib < need_gib and share < 1:
        share = round(share + 0.01, 2)
    return share


def entry_budget(entry: ChainEntry, tier: Tier, known: Catalogue | None = None) -> Budget | None:
    """Return the budget of a chain entry on its tier's cards; None if the catalogue lacks its GPU or a model."""
    known = known or catalogue()
    model, gpu = known.models.get(entry.target), known.gpus.get(tier.gpu or "")
    if model is None or gpu is None:
        return None
    arguments, parallel = entry.engine_args, tier.tensor_parallel
    drafts = entry.speculation.k_max if entry.speculation else 0
    draft_bytes, draft_kv = 0.0, 0
    if entry.speculation and entry.speculation.draft is not None:
        head, small = known.eagle3_heads.get(entry.speculation.draft), known.models.get(entry.speculation.draft)
        if head is not None:
            draft_bytes, draft_kv = head.weight_bytes, head.kv_bytes_per_token(1, parallel)
        elif small is not None:
            draft_bytes, draft_kv = small.weight_bytes, small.kv_bytes_per_token(small.layers, parallel)
        else:
            return None
    sequences = tier.most_sequences(entry)
    allowed = arguments.get("gpu_memory_utilization", default_utilization(tier, known))
    return Budget(
        weights=model.weight_bytes / parallel / GIB,
        draft=draft_bytes / parallel / GIB,
        graphs=_graphs(model, sequences, drafts, bool(arguments.get("enforce_eager"))),
        activations=_activations(model, parallel, _batched_tokens(entry), sequences, drafts),
        kv=kv_cache(model, parallel, entry.max_model_len, drafts, draft_kv),
        allowed=float(allowed) * gpu.memory_gib if isinstance(allowed, int | float) else 0.0,
    )


def kv_cache(model: Model, parallel: int, max_model_len: int, drafts: int = 0, draft_bytes_per_token: int = 0) -> float:
    """Return the KV cache on each card, GiB: the larger of one full context and 16 mean requests.

    vLLM's arithmetic for full attention (`v1/kv_cache_interface.py: FullAttentionSpec`): whole blocks of 16 tokens, in
    each layer 2 (key, value) x KV heads of the card x head size x 2 bytes a token. A head's own layer is one more.
    """
    per_token = model.kv_bytes_per_token(model.layers, parallel) + draft_bytes_per_token
    full = ceil((max_model_len + drafts) / _BLOCK) * _BLOCK
    mean = MEAN_REQUESTS * ceil((min(MEAN_REQUEST_TOKENS, max_model_len) + drafts) / _BLOCK) * _BLOCK
    return max(full, mean) * per_token / GIB


def memory_problems(profile: Profile) -> list[str]:
    """Return one line for each entry that does not fit its card, as far as the catalogue knows them."""
    lines = []
    for name, tier in profile.tiers.items():
        for entry in tier.chain:
            budget = entry_budget(entry, tier)
            if budget is not None and not budget.fits:
                where = f"{tier.gpus:g} x {tier.gpu}"
                lines.append(f"tiers.{name}.chain, entry {entry.name!r} on {where}: {budget}")
    return lines


def _activations(model: Model, parallel: int, tokens: int, sequences: int, drafts: int) -> float:
    """Return the peak of the profiling run, GiB.

    In 2 bytes: a few residual streams (8) and the MLP's three widths for each batched token, an expert's for each that
    it passes; logits in float32 twice (processed, probabilities) for each sequence and draft.
    """
    streams = 2 * tokens * (8 * model.hidden + 3 * model.intermediate * model.experts_per_token / parallel)
    logits = 2 * 4 * sequences * (drafts + 1) * model.vocab
    return (streams + logits) / GIB + _WORKSPACE_GIB + _NCCL_GIB.get(parallel, 0.39)


def _graphs(model: Model, sequences: int, drafts: int, eager: bool) -> float:
    """Return the memory of CUDA graphs, GiB: whole decode steps of each depth up to `drafts`, and pieces of all sizes.

    The sizes are those of `serve_app/engine/vllm/decode_graphs.py`: up to about 15 for each depth.
    """
    if eager:
        return 0.0
    sizes = min(4 + ceil(sequences / 8), 15)
    graphs = _PIECEWISE_GRAPHS + sizes * (2 * drafts + 1)
    return _GRAPHS_GIB + graphs * model.layers * _GRAPH_GIB_PER_LAYER


def _batched_tokens(entry: ChainEntry) -> int:
    said = entry.engine_args.get("max_num_batched_tokens")
    return said if isinstance(said, int) else DEFAULT_BATCHED_TOKENS
