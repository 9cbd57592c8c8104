"""The budget's arithmetic against the libraries' own: transformers' parameters and vLLM's KV cache blocks."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from vllm.v1.kv_cache_interface import FullAttentionSpec

from bench.estimate import hub_config
from cluster.catalogue.memory import kv_cache
from cluster.catalogue.types import GIB, catalogue

MODELS = catalogue().models


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b-instruct-fp8", "qwen2.5-0.5b-instruct", "qwen3-30b-a3b-instruct-2507-fp8"]
)
def test_the_weights_of_a_model_are_those_that_its_config_makes(name: str, tmp_path: Path) -> None:
    model = MODELS[name].model_copy(update={"weights": "bf16"})
    (tmp_path / "config.json").write_text(json.dumps(hub_config(model)))
    with torch.device("meta"):
        made = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    real = 2 * sum(weights.numel() for weights in made.parameters())
    # Norms and biases are left out.
    assert model.weight_bytes == pytest.approx(real, rel=0.001)
    assert model.weight_bytes <= real


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("parallel", "length"), [(1, 16384), (2, 32768), (4, 20000)])
def test_the_kv_cache_of_a_full_context_is_vllms(name: str, parallel: int, length: int) -> None:
    model = MODELS[name]
    spec = FullAttentionSpec(
        block_size=16,
        num_kv_heads=max(1, model.kv_heads // parallel),
        head_size=model.head_dim,
        dtype=torch.bfloat16,
    )
    config = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=length),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
    )
    vllms = model.layers * spec.max_memory_usage_bytes(config) / GIB
    assert kv_cache(model, parallel, length) == pytest.approx(vllms)
