"""CUDA graphs of decode steps for every depth, on vLLM's V2 runner. Runs in the worker.

With a schedule of depths (`decode_graphs.py`) vLLM 0.32 captures every depth at each of its sizes, and then looks for a
step's graph only among those of the next larger number of tokens. Where that number is no multiple of the step's tokens
per request, the step runs piece by piece although a graph for it exists: for example three requests of three tokens
each, next to a size of ten tokens. Here fewer graphs are captured, at the same batch sizes for every depth, and a step
gets the smallest one of its depth. Piece by piece vLLM captures every size in its list; here only its own default ones,
as the others are there for whole steps.
"""

from __future__ import annotations

from typing import Any

from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu import model_runner
from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager, ModelCudaGraphManager
from vllm.v1.worker.gpu.spec_decode.target_dependent_ar import speculator
from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.cudagraph_utils import SpeculatorCudaGraphManager

from serve_app.engine.vllm.decode_graphs import decode_graphs, piecewise_sizes


class _EveryDepth(CudaGraphManager):
    """See the module. Graphs that are not for one depth (`uniform_token_count`) stay as vLLM has them."""

    _capture_descs: dict[CUDAGraphMode, list[Any]]

    def _init_candidates(self) -> None:
        super()._init_candidates()
        whole = self._capture_descs.get(CUDAGraphMode.FULL, [])
        if not whole or any(desc.uniform_token_count is None for desc in whole):
            return  # no whole-step graphs, or such as take any mix of depths
        pieces = self._capture_descs.get(CUDAGraphMode.PIECEWISE, [])
        if self.vllm_config.additional_config.facts.graph == "per_k":  # else the entry says its sizes itself
            k_max = self.decode_query_len - 1
            wanted, sizes = decode_graphs(k_max, self.max_num_reqs), set(piecewise_sizes(k_max, self.max_num_reqs))
            whole = [desc for desc in whole if desc.num_reqs in wanted[desc.uniform_token_count]]
            pieces = [desc for desc in pieces if desc.num_tokens in sizes]
        kept = {CUDAGraphMode.FULL: whole, CUDAGraphMode.PIECEWISE: pieces}
        self._capture_descs = {mode: descs for mode, descs in kept.items() if descs}
        for (tokens, loras), candidates in self._candidates.items():
            fitting: dict[int | None, Any] = {}
            for desc in [*reversed(whole), *reversed(pieces)]:  # the smallest first
                if desc.num_active_loras == loras and desc.num_tokens >= tokens:
                    fitting.setdefault(desc.uniform_token_count, desc)
            candidates[:] = fitting.values()


class DepthModelGraphs(_EveryDepth, ModelCudaGraphManager):
    """The target model's graphs."""


class DepthDraftGraphs(_EveryDepth, SpeculatorCudaGraphManager):
    """The graphs of a draft head's first step, and of its loop."""


def graph_every_depth() -> None:
    """Have runners that are made in this process from now on use the classes here."""
    model_runner.ModelCudaGraphManager = DepthModelGraphs
    speculator.SpeculatorCudaGraphManager = DepthDraftGraphs
