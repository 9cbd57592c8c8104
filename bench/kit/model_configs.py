"""Model folders without weights: what vLLM reads of a model before it loads it, made from the catalogue's numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from cluster.catalogue.types import Eagle3Head, Model, WeightFormat

_LLAMA_ROPE: Final = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def write_model(folder: Path, model: Model) -> None:
    """Write the config of a target model, or of a draft model, into a new folder."""
    family = model.repo.split("/")[1].lower()
    kind = "llama" if "llama" in family else "qwen2" if "qwen2" in family else "qwen3"
    experts = model.experts > 1
    names = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
    config = _decoder(model) | {
        "architectures": ["Qwen3MoeForCausalLM" if experts else names[kind]],
        "model_type": "qwen3_moe" if experts else kind,
        "num_hidden_layers": model.layers,
        "vocab_size": model.vocab,
        "max_position_embeddings": model.context,
        "tie_word_embeddings": model.tied,
        **({"rope_scaling": _LLAMA_ROPE, "rope_theta": 500000.0} if kind == "llama" else {"rope_theta": 1000000.0}),
    }
    if experts:
        config |= {
            "num_experts": model.experts,
            "num_experts_per_tok": model.experts_per_token,
            "moe_intermediate_size": model.intermediate,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    quantization = _quantization(model.weights, awq="awq" in family)
    if quantization is not None:
        config["quantization_config"] = quantization
    _write(folder, config)


def write_eagle3(folder: Path, head: Eagle3Head, target: Model) -> None:
    """Write the config of an EAGLE-3 head into a new folder."""
    config = _decoder(head) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "vocab_size": target.vocab,
        "draft_vocab_size": head.draft_vocab,
        "target_hidden_size": head.target_hidden,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "rope_theta": 500000.0,
    }
    _write(folder, config)


def _decoder(part: Model | Eagle3Head) -> dict[str, Any]:
    return {
        "hidden_size": part.hidden,
        "num_attention_heads": part.heads,
        "num_key_value_heads": part.kv_heads,
        "head_dim": part.head_dim,
        "intermediate_size": part.intermediate,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _quantization(weights: WeightFormat, *, awq: bool) -> dict[str, Any] | None:
    """Return `quantization_config` as the publishers of such weights write it."""
    match weights:
        case "bf16":
            return None
        case "fp8-block":
            return {
                "quant_method": "fp8",
                "activation_scheme": "dynamic",
                "fmt": "e4m3",
                "weight_block_size": [128, 128],
            }
        case "fp8":
            group = {
                "targets": ["Linear"],
                "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False},
                "input_activations": {
                    "num_bits": 8,
                    "type": "float",
                    "strategy": "token",
                    "symmetric": True,
                    "dynamic": True,
                },
            }
            return _compressed("float-quantized", group)
        case "w4a16" if awq:
            return {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}
        case "w4a16":
            weights_of = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
            return _compressed("pack-quantized", {"targets": ["Linear"], "weights": weights_of})


def _compressed(form: str, group: dict[str, Any]) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def _write(folder: Path, config: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
