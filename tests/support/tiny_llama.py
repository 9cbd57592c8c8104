"""A language model that is small enough to test distributions: random weights, 64 tokens, a checkpoint for engines.

    write_tiny_llama(folder / "target", TARGET)
    write_tiny_llama(folder / "draft", DRAFT)

Its distributions depend on all tokens so far. The scale of the output layer makes them neither flat nor peaked at
temperatures from 0.5 to 1, so that a wrong distribution shows in few samples. The draft is a perturbed copy, which
agrees with the target often, but not always.

`TinyLlama.distribution` computes the model in numpy, in double precision: an engine must sample from it.
"""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

SPECIAL_TOKENS: Final = ("<unk>", "<s>", "</s>")
CHARACTERS: Final = string.ascii_letters + " \n.,?!:'-"
VOCABULARY: Final = len(SPECIAL_TOKENS) + len(CHARACTERS)
BOS_ID: Final = 1
EOS_ID: Final = 2

HIDDEN: Final = 64
INTERMEDIATE: Final = 128
LAYERS: Final = 2
HEADS: Final = 2
HEAD_SIZE: Final = HIDDEN // HEADS
"""32: the smallest of vLLM's CPU attention (`CPUAttentionBackend.get_supported_head_sizes`)."""
ROPE_THETA: Final = 10_000.0
NORM_EPSILON: Final = 1e-5
MAX_LENGTH: Final = 256

LOGIT_DEVIATION: Final = 1.5
"""Standard deviation of the logits. At temperature 1, normal logits then have an entropy of about
ln(VOCABULARY) - LOGIT_DEVIATION^2 / 2 = 3.0 nats."""

# Only characters of the vocabulary.
CHAT_TEMPLATE: Final = (
    "{% for message in messages %}{{ message['content'] }}\n{% endfor %}{% if add_generation_prompt %}- {% endif %}"
)


@dataclass(frozen=True)
class TinyLlama:
    """The model of a seed; `perturbation` is the share (0 to 1) of other random weights mixed in."""

    seed: int = 0
    perturbation: float = 0.0

    @cached_property
    def weights(self) -> dict[str, Array]:
        """Weights by the names that transformers and vLLM use."""
        own, other = np.random.default_rng(self.seed), np.random.default_rng([self.seed, 1])
        share = self.perturbation

        def matrix(rows: int, columns: int, deviation: float) -> Array:
            # The squares add up to 1, so that perturbation keeps the norm.
            mixed = np.sqrt(1 - share**2) * own.normal(size=(rows, columns)) + share * other.normal(
                size=(rows, columns)
            )
            # Rounded as in the checkpoint.
            rounded: Array = (deviation * mixed).astype(np.float32).astype(np.float64)
            return rounded

        even = HIDDEN**-0.5  # keeps the norm of the input
        weights = {"model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN, 1.0)}
        for layer in range(LAYERS):
            name = f"model.layers.{layer}"
            weights |= {
                f"{name}.input_layernorm.weight": np.ones(HIDDEN),
                f"{name}.self_attn.q_proj.weight": matrix(HIDDEN, HIDDEN, even),
                f"{name}.self_attn.k_proj.weight": matrix(HIDDEN, HIDDEN, even),
                f"{name}.self_attn.v_proj.weight": matrix(HIDDEN, HIDDEN, even),
                # Doubled, as attention takes a mean, which is small: each past token must count.
                f"{name}.self_attn.o_proj.weight": matrix(HIDDEN, HIDDEN, 2 * even),
                f"{name}.post_attention_layernorm.weight": np.ones(HIDDEN),
                f"{name}.mlp.gate_proj.weight": matrix(INTERMEDIATE, HIDDEN, even),
                f"{name}.mlp.up_proj.weight": matrix(INTERMEDIATE, HIDDEN, even),
                f"{name}.mlp.down_proj.weight": matrix(HIDDEN, INTERMEDIATE, INTERMEDIATE**-0.5),
            }
        weights["model.norm.weight"] = np.ones(HIDDEN)
        # After the last norm all hidden states have length sqrt(HIDDEN), so this sets the scale of the logits.
        weights["lm_head.weight"] = matrix(VOCABULARY, HIDDEN, LOGIT_DEVIATION * even)
        return weights

    def logits(self, tokens: Sequence[int]) -> Array:
        """Return [len(tokens), VOCABULARY]: row i is for the token after the first i + 1."""
        weights = self.weights
        x = weights["model.embed_tokens.weight"][list(tokens)]
        for layer in range(LAYERS):
            name = f"model.layers.{layer}"
            x = x + _attention(_normed(x), *(weights[f"{name}.self_attn.{part}_proj.weight"] for part in "qkvo"))
            y = _normed(x)
            gate, up = (y @ weights[f"{name}.mlp.{part}_proj.weight"].T for part in ("gate", "up"))
            x = x + (gate / (1 + np.exp(-gate)) * up) @ weights[f"{name}.mlp.down_proj.weight"].T
        logits: Array = _normed(x) @ weights["lm_head.weight"].T
        return logits

    def distribution(self, tokens: Sequence[int], temperature: float = 1.0) -> Array:
        """Return [VOCABULARY]: probabilities of the next token."""
        return _softmax(self.logits(tokens)[-1] / temperature)


TARGET: Final = TinyLlama()
DRAFT: Final = TinyLlama(perturbation=0.15)


def write_tiny_llama(folder: Path, model: TinyLlama) -> None:
    """Write the model as a float32 checkpoint with its tokenizer. The folder must not exist."""
    folder.mkdir(parents=True)
    save_file({name: w.astype(np.float32) for name, w in model.weights.items()}, folder / "model.safetensors")
    tokenizer().save(str(folder / "tokenizer.json"))
    for file, content in (("config.json", CONFIG), ("tokenizer_config.json", _TOKENIZER_CONFIG)):
        (folder / file).write_text(json.dumps(content, indent=2), encoding="utf-8")


def tokenizer() -> Tokenizer:
    """Return a tokenizer with one token per character; it encodes text without `<s>`."""
    vocabulary = {token: token_id for token_id, token in enumerate((*SPECIAL_TOKENS, *CHARACTERS))}
    characters = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS[0]))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    characters.decoder = decoders.Fuse()
    characters.add_special_tokens(list(SPECIAL_TOKENS))
    return characters


CONFIG: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": HEAD_SIZE,
    "hidden_act": "silu",
    "max_position_embeddings": MAX_LENGTH,
    "rms_norm_eps": NORM_EPSILON,
    "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "dtype": "float32",
}

_TOKENIZER_CONFIG: Final[dict[str, Any]] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "unk_token": SPECIAL_TOKENS[0],
    "bos_token": SPECIAL_TOKENS[BOS_ID],
    "eos_token": SPECIAL_TOKENS[EOS_ID],
    "clean_up_tokenization_spaces": False,
    "model_max_length": MAX_LENGTH,
    "chat_template": CHAT_TEMPLATE,
}


def _attention(x: Array, q_proj: Array, k_proj: Array, v_proj: Array, o_proj: Array) -> Array:
    """Return causal self-attention: [tokens, HIDDEN] to the same."""
    q, k, v = ((x @ w.T).reshape(len(x), HEADS, HEAD_SIZE).swapaxes(0, 1) for w in (q_proj, k_proj, v_proj))
    scores = _rotated(q) @ _rotated(k).swapaxes(1, 2) * HEAD_SIZE**-0.5
    later = np.triu(np.ones((len(x), len(x)), dtype=bool), k=1)
    heads = _softmax(np.where(later, -np.inf, scores)) @ v
    mixed: Array = heads.swapaxes(0, 1).reshape(len(x), HIDDEN) @ o_proj.T
    return mixed


def _rotated(x: Array) -> Array:
    """Return rotary position embedding of [HEADS, tokens, HEAD_SIZE] (Su et al. 2021, arXiv:2104.09864, equation 34).

    As in Llama checkpoints, dimension i is rotated with dimension i + HEAD_SIZE / 2, not with its neighbour.
    """
    half = HEAD_SIZE // 2
    angles = np.arange(x.shape[1])[:, None] * ROPE_THETA ** (-np.arange(half) / half)
    cos, sin = np.cos(angles), np.sin(angles)
    low, high = x[..., :half], x[..., half:]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def _normed(x: Array) -> Array:
    """Return RMSNorm with weight 1."""
    normed: Array = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + NORM_EPSILON)
    return normed


def _softmax(x: Array) -> Array:
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    probabilities: Array = weights / weights.sum(axis=-1, keepdims=True)
    return probabilities
