"""What the tests of drafts share: a models folder with a random Llama of 4 layers, made in milliseconds."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import pytest

from cluster.weights.early_exit.calibration import Calibration
from cluster.weights.early_exit.checkpoint import Target
from cluster.weights.manifest import Manifest, describe_files, write_manifest

TARGET = "tiny"
REPO = "org/tiny"
LAYERS = 4
FEW = Calibration(tokens=600)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}{% endfor %}{% if add_generation_prompt %}: {% endif %}"
)


def write_target(models: Path, key: str = TARGET, *, seed: int = 0, **config: Any) -> Target:
    """Write a complete model into the models folder: width 32, 100 tokens, one token per character."""
    path = models / key
    model(seed, **config).save_pretrained(path, max_shard_size=config.pop("shard", "5GB"))
    tokenizer(path)
    return signed(path)


def signed(path: Path) -> Target:
    """The model with the manifest that a seed would have written for what is in the folder now."""
    manifest = Manifest(source="hub", repo=REPO, revision="main", commit="c" * 40, files=describe_files(path))
    write_manifest(path, manifest)
    return Target.of(path, manifest)


def model(seed: int = 0, **config: Any) -> Any:
    """Random weights, also of the norms: ones would hide a norm that is left out."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = {
        "vocab_size": 100,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "float32",
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = LlamaForCausalLM(LlamaConfig(**settings | config))
        for name, weights in made.named_parameters():
            if "norm" in name:
                torch.nn.init.uniform_(weights, 0.5, 1.5)
    return made.to(getattr(torch, str(config.get("dtype", "float32")))).eval()


def tokenizer(path: Path) -> None:
    """Write the tokenizer of a model: three special tokens, and characters."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    special = ["<unk>", "<s>", "</s>"]
    vocabulary = {token: number for number, token in enumerate([*special, *string.printable[:97]])}
    characters = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    characters.add_special_tokens(special)
    characters.save(str(path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "chat_template": CHAT_TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Keep torch from waiting for a second core, which these tiny matrices do not need and other processes use."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def target(models: Path) -> Target:
    return write_target(models)
