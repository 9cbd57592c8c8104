"""CUDA graphs of decode steps for every depth, on vLLM's V2 runner. Runs in the worker.

With a schedule of depths (`decode_graphs.py`) vLLM 0.32 captures every depth at each of its sizes, and then looks for a
step's graph only among those of the next larger number of tokens. Where that number is no multiple of the step's tokens
per request, the step runs piece by piece although a graph for it exists: for example three requests of three tokens
each, next to a size of ten tokens. Here fewer graphs are captured, at the same batch sizes for every depth, and a step
gets the smallest one of its depth.
"""

from __future__ import annotations

from typing import Any

from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu import model_runner
from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager, ModelCudaGraphManager
from vllm.v1.worker.gpu.spec_decode.target_dependent_ar import speculator
from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.cudagraph_utils import SpeculatorCudaGraphManager

from serve_app.engine.vllm.decode_graphs import decode_graphs


class _EveryDepth(CudaGraphManager):
    """See the module. Graphs that are not for one depth (`uniform_token_count`) stay as vLLM has them."""

    def _init_candidates(self) -> None:
        super()._init_candidates()
        decodes = self._capture_descs.get(CUDAGraphMode.FULL, [])
        if not decodes or any(desc.uniform_token_count is None for desc in decodes):
            return  # no whole-step graphs, or such as take any mix of depths
        wanted = decode_graphs(self.decode_query_len - 1, self.max_num_reqs)
        kept = [desc for desc in decodes if desc.num_reqs in wanted[desc.uniform_token_count]]
        self._capture_descs[CUDAGraphMode.FULL] = kept
        for (tokens, loras), candidates in self._candidates.items():
            fitting: dict[int, Any] = {}
            for desc in reversed(kept):  # the smallest first
                if desc.num_active_loras == loras and desc.num_tokens >= tokens:
                    fitting.setdefault(desc.uniform_token_count, desc)
            pieces = [desc for desc in candidates if desc.cg_mode != CUDAGraphMode.FULL]
            candidates[:] = [*fitting.values(), *pieces]


class DepthModelGraphs(_EveryDepth, ModelCudaGraphManager):
    """The target model's graphs."""


class DepthDraftGraphs(_EveryDepth, SpeculatorCudaGraphManager):
    """The graphs of a draft head's first step, and of its loop."""


def graph_every_depth() -> None:
    """Have runners that are made in this process from now on use the classes here."""
    model_runner.ModelCudaGraphManager = DepthModelGraphs
    speculator.SpeculatorCudaGraphManager = DepthDraftGraphs
