"""vLLM's GPU worker with what speculation needs of its V2 model runner (`worker_cls`)."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.gpu_worker import Worker

from serve_app.engine.vllm.worker.v2 import V2DraftingMixin


class DepthGpuWorker(V2DraftingMixin, Worker):
    """Drafts as asked for, measures its steps, and has a CUDA graph for every depth."""

    def _make_model_runner(self) -> Any:
        # V2's modules need Triton, so only a worker that has it imports them.
        from serve_app.engine.vllm.graph_managers import graph_every_depth

        graph_every_depth()
        return super()._make_model_runner()
