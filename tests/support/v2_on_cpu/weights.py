"""The tiny models of the V2 tests: a target, a draft model, and an EAGLE-3 head with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import save_file

from tests.support.tiny_llama import (
    CONFIG,
    DRAFT,
    HIDDEN,
    INTERMEDIATE,
    LAYERS,
    LOGIT_DEVIATION,
    TARGET,
    VOCABULARY,
    write_tiny_llama,
)

AUX_LAYERS: Final = (1, LAYERS)
"""Of the target; the head reads the hidden states before these. Layer 0 would be the embedding."""


def write_models(folder: Path) -> None:
    """Write `target`, `draft` and `eagle3` into the folder."""
    write_tiny_llama(folder / "target", TARGET)
    write_tiny_llama(folder / "draft", DRAFT)
    write_eagle3_head(folder / "eagle3")


def write_eagle3_head(folder: Path, seed: int = 0) -> None:
    """Write a head as `Eagle3LlamaForCausalLM` of vLLM loads it. Its drafts are right about as often as by chance."""
    folder.mkdir(parents=True)
    random = np.random.default_rng([seed, 2])

    def matrix(rows: int, columns: int, deviation: float) -> Any:
        return (deviation * random.normal(size=(rows, columns))).astype(np.float32)

    even = HIDDEN**-0.5
    ones = np.ones(HIDDEN, dtype=np.float32)
    layer = "midlayer"
    weights = {
        "fc.weight": matrix(HIDDEN, len(AUX_LAYERS) * HIDDEN, (len(AUX_LAYERS) * HIDDEN) ** -0.5),
        f"{layer}.input_layernorm.weight": ones,
        f"{layer}.hidden_norm.weight": ones,
        # The layer reads the token's embedding beside the hidden state.
        f"{layer}.self_attn.q_proj.weight": matrix(HIDDEN, 2 * HIDDEN, even),
        f"{layer}.self_attn.k_proj.weight": matrix(HIDDEN, 2 * HIDDEN, even),
        f"{layer}.self_attn.v_proj.weight": matrix(HIDDEN, 2 * HIDDEN, even),
        f"{layer}.self_attn.o_proj.weight": matrix(HIDDEN, HIDDEN, 2 * even),
        f"{layer}.post_attention_layernorm.weight": ones,
        f"{layer}.mlp.gate_proj.weight": matrix(INTERMEDIATE, HIDDEN, even),
        f"{layer}.mlp.up_proj.weight": matrix(INTERMEDIATE, HIDDEN, even),
        f"{layer}.mlp.down_proj.weight": matrix(HIDDEN, INTERMEDIATE, INTERMEDIATE**-0.5),
        "norm.weight": ones,
        "lm_head.weight": matrix(VOCABULARY, HIDDEN, LOGIT_DEVIATION * even),
    }
    save_file(weights, folder / "model.safetensors")
    config = CONFIG | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": VOCABULARY,
        "num_hidden_layers": 1,
        "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": list(AUX_LAYERS)},
        "eagle_aux_hidden_state_layer_ids": list(AUX_LAYERS),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
