"""What the controller is told of an engine before it runs, from the arguments of its entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from router.registry import ChainEntry, Tier
from serve_app.speculation.settings import EngineFacts, SpeculationSettings

GRAPHS = EngineFacts(graph="per_k", graph_tokens=512)


def arguments(gpu: str | None = "L4", *, gpus: float = 1, method: str = "eagle3", **entry: Any) -> Any:
    """vLLM's arguments of an entry on a card, or on CPU."""
    from serve_app.engine.vllm.arguments import engine_args

    tier = Tier.model_validate(
        {
            "power": [0, 100],
            "gpu": gpu,
            "gpus": gpus if gpu else 0,
            "replicas": {"min": 1, "max": 1},
            "price_usd_per_hour": 1,
            "active_watts": 1,
            "idle_watts": 1,
            "chain": [
                {
                    "name": "entry",
                    "target": "target",
                    "max_model_len": 128,
                    "speculation": {"method": method, "draft": None if method == "ngram_gpu" else "draft", "k_max": 3},
                    **entry,
                }
            ],
        }
    )
    [chosen] = tier.chain
    assert isinstance(chosen, ChainEntry)
    return engine_args("tier", tier, chosen, SpeculationSettings(), Path)


def facts(**entry: Any) -> EngineFacts:
    told: EngineFacts = arguments(**entry).additional_config.facts
    return told


def test_steps_of_each_depth_have_graphs(vllm_installed: None) -> None:
    assert facts() == facts(engine_args={"enforce_eager": False, "optimization_level": 3, "max_num_seqs": 8}) == GRAPHS
    assert facts(runner="v1") == GRAPHS.model_copy(update={"graph": "k_max"})


@pytest.mark.parametrize(
    "engine_args",
    [
        {"enforce_eager": True},
        {"optimization_level": 1},
        {"cudagraph_capture_sizes": [1, 2]},
        {"max_cudagraph_capture_size": 8},
        {"compilation_config": {"cudagraph_capture_sizes": []}},
        {"compilation_config": {"max_cudagraph_capture_size": 0}},
        {"compilation_config": {"cudagraph_mode": "NONE"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_an_entry_that_says_its_own_graphs_is_not_told_to_have_ours(
    vllm_installed: None, runner: str, engine_args: dict[str, Any]
) -> None:
    assert facts(runner=runner, engine_args=engine_args) == EngineFacts()


def test_lookup_on_the_gpu_and_a_head_that_drafts_all_at_once_cost_the_same_at_every_depth(
    vllm_installed: None,
) -> None:
    assert facts(method="ngram_gpu") == GRAPHS.model_copy(update={"draft": "k_max"})
    assert facts(method="p_eagle") == GRAPHS.model_copy(update={"graph": "k_max", "draft": "k_max"})
    assert facts(method="ngram_gpu", engine_args={"enforce_eager": True}) == EngineFacts(draft="k_max")


def test_v2_on_a_tier_without_a_gpu_has_no_graphs_to_choose(vllm_installed: None) -> None:
    args = arguments(gpu=None, runner="v2")

    assert args.max_num_seqs is None
    assert args.additional_config.facts == EngineFacts()
    assert args.compilation_config.cudagraph_capture_sizes is None


def test_a_share_of_a_card_leaves_room_for_the_cuda_context_outside(vllm_installed: None) -> None:
    # With the shares themselves the last engine on a full card would find too little free memory.
    assert arguments(gpus=0.5).gpu_memory_utilization == 0.481
    assert arguments("T4", gpus=0.5).gpu_memory_utilization == 0.5  # not in the catalogue
    assert arguments(gpus=0.5, engine_args={"gpu_memory_utilization": 0.4}).gpu_memory_utilization == 0.4


def test_no_attention_that_runs_nvcc_is_chosen_by_default(vllm_installed: None) -> None:
    # vLLM's own first choice on a B200 is FlashInfer's.
    assert arguments("B200").attention_backend == "FLASH_ATTN"
    assert arguments("B200", engine_args={"attention_backend": "TRITON_ATTN"}).attention_backend == "TRITON_ATTN"
    assert arguments("B200", engine_args={"attention_config": {"backend": "FLASHINFER"}}).attention_backend is None
    assert arguments("H100").attention_backend is None
