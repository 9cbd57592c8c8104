"""vLLM's GPU worker with what speculation needs of its V2 model runner (`worker_cls`)."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.worker.gpu_worker import Worker

from serve_app.engine.vllm.worker.v2 import V2DraftingMixin


class DepthGpuWorker(V2DraftingMixin, Worker):
    """Drafts as asked for, measures its steps, and has a CUDA graph for every depth."""

    def _make_model_runner(self) -> Any:
        # V2's modules need Triton, so only a worker that has it imports them.
        from serve_app.engine.vllm.graph_managers import graph_every_depth

        graph_every_depth()
        runner = super()._make_model_runner()
        if self.vllm_config.additional_config.speculation.drafts_both_ways:
            keep_texts_on_the_device(runner.req_states)
        return runner


def keep_texts_on_the_device(states: Any) -> None:
    """Hold the requests' token ids in the device's memory, as vLLM does for `ngram_gpu`.

    Otherwise they are in the host's, and a lookup beside an own draft reads whole texts over PCIe at every step.

    Args:
        states: a V2 runner's, before its model is loaded.
    """
    from vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor

    size = states.max_num_reqs, states.max_model_len
    states.all_token_ids = StagedWriteTensor(size, dtype=torch.int32, device=states.device)
