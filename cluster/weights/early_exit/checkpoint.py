"""Check that a model can be a target, and write the draft as a checkpoint.

A draft is an ordinary checkpoint of the target's architecture, with fewer layers and its own output layer.
"""

from __future__ import annotations

import json
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.weights.errors import WeightsError
from cluster.weights.manifest import Manifest

if TYPE_CHECKING:
    from torch import Tensor

ARCHITECTURES = ("LlamaForCausalLM",)
"""Architectures whose tensors have the names below, and whose output layer `config.json` alone can untie."""
_EMBEDDING, _NORM, _HEAD, _LAYER = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "model.layers."
_WEIGHTS = ".safetensors"
_CONFIG = "config.json"


@dataclass(frozen=True, slots=True)
class Target:
    """A model in the models folder that drafts can be made from."""

    path: Path
    manifest: Manifest
    config: dict[str, Any]

    @classmethod
    def of(cls, path: Path, manifest: Manifest) -> Target:
        """Return the model in a complete folder.

        Raises:
            WeightsError: its architecture is unknown here, or it is quantized or not in safetensors.
            OSError: its `config.json` cannot be read.
        """
        config = json.loads((path / _CONFIG).read_text(encoding="utf-8"))
        architectures = config.get("architectures")
        if not architectures or any(name not in ARCHITECTURES for name in architectures):
            raise WeightsError(
                f"{path.name} is a {', '.join(architectures or ['model of no architecture'])}: an early-exit draft can "
                f"be made from {', '.join(ARCHITECTURES)}"
            )
        if "quantization_config" in config:
            raise WeightsError(f"{path.name} is quantized: an early-exit draft needs unquantized weights")
        if not any(name.endswith(_WEIGHTS) for name in manifest.files):
            raise WeightsError(f"{path.name} has no *{_WEIGHTS}: an early-exit draft needs them")
        return cls(path, manifest, config)

    @property
    def layers(self) -> int:
        """How many layers it has."""
        return int(self.config["num_hidden_layers"])

    def check(self, layers: int) -> None:
        """Check that a draft can have this many layers.

        Raises:
            WeightsError: it cannot.
        """
        if not 1 <= layers <= self.layers:
            raise WeightsError(
                f"layers: got {layers}, {self.path.name} has {self.layers}: allowed are 1 to {self.layers}"
            )

    def draft_size(self, layers: int) -> int:
        """Return the size of a draft with this many layers, bytes, within a few kB."""
        sizes = {name: size for file in self._files(weights=True) for name, size in _tensor_sizes(file).items()}
        kept = sum(size for name, size in sizes.items() if _is_kept(name, layers))
        others = sum(file.stat().st_size for file in self._files(weights=False))
        return kept + sizes[_EMBEDDING] + others  # the output layer is as large as the embedding

    def write_draft(self, folder: Path, layers: int, head: Tensor) -> Tensor:
        """Write a draft with the first `layers` layers and the output layer `head` [vocab, hidden] into `folder`.

        Returns the output layer as written: rounded to the dtype of the target's weights.

        Raises:
            OSError: a file cannot be read or written.
        """
        from safetensors.torch import load_file, save_file

        tensors: dict[str, Tensor] = {}
        for file in self._files(weights=True):
            tensors |= {name: tensor for name, tensor in load_file(file).items() if _is_kept(name, layers)}
        tensors[_HEAD] = head.to(tensors[_EMBEDDING].dtype).contiguous()
        weights = folder / f"model{_WEIGHTS}"
        save_file(tensors, weights, metadata={"format": "pt"})
        weights.chmod(0o644)  # safetensors writes 0600; an engine may run as another user
        for file in self._files(weights=False):
            shutil.copyfile(file, folder / file.name)
        config = self.config | {"num_hidden_layers": layers, "tie_word_embeddings": False}
        (folder / _CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        return tensors[_HEAD]

    def _files(self, *, weights: bool) -> list[Path]:
        """Return its tensor files, or the others that a draft has too: tokenizer, chat template and the like."""
        names = sorted(self.manifest.files)
        if weights:
            return [self.path / name for name in names if name.endswith(_WEIGHTS)]
        left = (_WEIGHTS, f"{_WEIGHTS}.index.json")
        return [self.path / name for name in names if name != _CONFIG and not name.endswith(left)]


def _is_kept(name: str, layers: int) -> bool:
    if name.startswith(_LAYER):
        return int(name.removeprefix(_LAYER).partition(".")[0]) < layers
    return name in (_EMBEDDING, _NORM)


def _tensor_sizes(file: Path) -> dict[str, int]:
    """Return the size of each tensor in a safetensors file, bytes, from its header alone.

    https://huggingface.co/docs/safetensors: 8 bytes of little-endian length, then JSON.
    """
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        header = json.loads(opened.read(length))
    return {
        name: tensor["data_offsets"][1] - tensor["data_offsets"][0]
        for name, tensor in header.items()
        if name != "__metadata__"
    }
