"""Drives our scheduler with asynchronous scheduling, which vLLM's CPU platform never has: made-up outputs, no engine.

driver = Driver(scheduler_config(model, k_max=3))
driver.add("a", 3, 0)
first = driver.schedule()
second = driver.schedule()  # before the first one's output, as the engine core does it
driver.update(first)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from serve_app.engine.vllm.step_record import RECORD_KEY, StepRecord
from serve_app.engine.vllm.step_times import TIMES_ATTRIBUTE, StepTimes
from serve_app.speculation.batch import Decision
from serve_app.speculation.controller import StepResult
from sustainability.shares import Totals

BLOCK: Final = 16
"""Tokens of a block of the KV cache."""


def scheduler_config(models: Path, k_max: int, **arguments: Any) -> Any:
    """Return vLLM's config of an engine with a draft model, or none, as on a GPU: asynchronous.

    Args:
        models: folder with `target` and `draft`.
        k_max: most draft tokens; 0: an engine without speculation.
        arguments: further ones of vLLM's engine.
    """
    from vllm.engine.arg_utils import EngineArgs

    from router.registry import Speculation
    from serve_app.engine.vllm.controller_config import ControllerConfig
    from serve_app.speculation.settings import SpeculationSettings

    given: dict[str, Any] = {
        "model": str(models / "target"),
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 128,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "block_size": BLOCK,
        "enable_prefix_caching": False,
    }
    if k_max:
        speculation = Speculation(method="draft_model", draft="draft", k_max=k_max)
        given |= {
            "speculative_config": {
                "method": "draft_model",
                "num_speculative_tokens": k_max,
                "model": str(models / "draft"),
            },
            "additional_config": ControllerConfig(SpeculationSettings(), speculation),
        }
    config = EngineArgs(**(given | arguments)).create_engine_config()
    config.scheduler_config.async_scheduling = True
    return config


class Driver:
    """A scheduler, a runner that only counts, and a controller that does as told.

    Args:
        config: see `scheduler_config`.
        blocks: of the KV cache.
        v2: whether the scheduler takes the runner for V2.
    """

    def __init__(self, config: Any, *, blocks: int = 64, v2: bool = True) -> None:
        import torch
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager

        from serve_app.engine.vllm.fair_scheduler import FairScheduler
        from serve_app.engine.vllm.scheduler import DepthScheduler

        config.cache_config.num_gpu_blocks = blocks
        layer = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        scheduler = DepthScheduler if config.speculative_config else FairScheduler
        self.scheduler = scheduler(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], layer)]),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            hash_block_size=BLOCK,
        )
        self.scheduler.use_v2_model_runner = v2
        self.observed: list[StepResult] = []
        """What the controller was told, by step."""
        self.records: dict[str, list[StepRecord]] = {}
        self.tokens: dict[str, list[int]] = {}
        self._depths: dict[str, deque[int]] = {}
        self._sampling: dict[int, set[str]] = {}
        if not isinstance(self.scheduler, DepthScheduler):
            return
        controller = self.scheduler._controller
        decide, observe = controller.decide, controller.observe

        def scripted(decoding: Sequence[str], prefill_tokens: int) -> dict[str, Decision]:
            decisions = decide(decoding, prefill_tokens)
            return {key: replace(each, k=self._next(key)) for key, each in decisions.items()}

        controller.decide = scripted  # type: ignore[method-assign]

        def observed(result: StepResult) -> None:
            self.observed.append(result)
            observe(result)

        controller.observe = observed  # type: ignore[method-assign]

    def _next(self, request_id: str) -> int:
        depths = self._depths[request_id]
        return depths.popleft() if len(depths) > 1 else depths[0]

    def add(
        self,
        request_id: str,
        *depths: int,
        prompt: int = 4,
        max_tokens: int = 50,
        stops: Sequence[int] = (),
        seed: int | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a request with these depths from the step that ends its prefill; the last one stays."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        self._depths[request_id] = deque(depths)
        params = SamplingParams(
            max_tokens=max_tokens,
            stop_token_ids=list(stops),
            ignore_eos=True,
            seed=seed,
            extra_args=dict(arguments or {}),
        )
        params.update_from_generation_config({}, None)
        self.scheduler.add_request(Request(request_id, list(range(3, 3 + prompt)), params, None))

    def schedule(self) -> Any:
        """Return vLLM's scheduler output of the next step."""
        scheduled = self.scheduler.schedule()
        self._sampling[id(scheduled)] = {
            key for key in scheduled.num_scheduled_tokens if not self.scheduler.requests[key].is_prefill_chunk
        }
        return scheduled

    def update(
        self, scheduled: Any, accepted: Mapping[str, Sequence[int]] | None = None, times: StepTimes | None = None
    ) -> None:
        """Give the scheduler a step's output: for each request its accepted drafts and one token more, which is 9.

        Args:
            scheduled: the step.
            accepted: token ids by request; others have none accepted.
            times: what the worker measured.
        """
        from vllm.v1.outputs import ModelRunnerOutput

        requests = list(scheduled.num_scheduled_tokens)
        sampling = self._sampling.pop(id(scheduled))
        output = ModelRunnerOutput(
            req_ids=requests,
            req_id_to_index={key: place for place, key in enumerate(requests)},
            sampled_token_ids=[[*(accepted or {}).get(key, ()), 9] if key in sampling else [] for key in requests],
        )
        if times is not None:
            setattr(output, TIMES_ATTRIBUTE, times)
        for group in self.scheduler.update_from_output(scheduled, output).values():
            for each in group.outputs:
                record = StepRecord(*each.kv_transfer_params[RECORD_KEY])
                self.records.setdefault(each.request_id, []).append(record)
                self.tokens.setdefault(each.request_id, []).extend(each.new_token_ids)

    def abort(self, request_id: str) -> None:
        """End a request whose client has left."""
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    @property
    def totals(self) -> Totals:
        """Where the busy time went."""
        return self.scheduler._ledger.totals

    @property
    def billed_s(self) -> float:
        """What all requests were billed, s."""
        return sum(record.busy_s for records in self.records.values() for record in records)

    def counts(self, request_id: str) -> list[tuple[int, int]]:
        """Return (drafted, accepted) of the request's records."""
        return [(record.drafted, record.accepted) for record in self.records.get(request_id, [])]


def drafted(scheduled: Any) -> dict[str, int]:
    """Return how many drafts the step verifies for each of its requests."""
    return {key: len(scheduled.scheduled_spec_decode_tokens.get(key, ())) for key in scheduled.num_scheduled_tokens}
