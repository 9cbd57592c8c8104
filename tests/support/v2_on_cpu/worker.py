"""Our V2 worker, on vLLM's CPU worker instead of the GPU one."""

from __future__ import annotations

from vllm.v1.worker.cpu_worker import CPUWorker

from serve_app.engine.vllm.worker.v2 import V2DraftingMixin


class V2CpuWorker(V2DraftingMixin, CPUWorker):
    """As `V2GpuWorker`."""
