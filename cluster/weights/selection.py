"""Which files of a hub repository an engine needs: one form of the weights, the configuration, the tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatch

_BESIDES_WEIGHTS = ("*.json", "tokenizer.model*", "*.tiktoken", "*.jinja", "vocab.txt", "merges.txt")


def servable(names: Iterable[str]) -> list[str]:
    """The names to fetch, sorted; empty when the repository has no weights that vLLM loads.

    Folders are left out: they hold other forms of the same weights (`original/`, `onnx/`). So are pickles
    (`*.bin`, `*.pth`) wherever there are safetensors; a few draft heads are published as `*.bin` alone.
    """
    root = [name for name in names if "/" not in name and not name.startswith(".")]
    weights = [name for name in root if name.endswith(".safetensors")]
    # Mistral publishes the same weights twice, as `model*` and as `consolidated*`.
    weights = [name for name in weights if not name.startswith("consolidated")] or weights
    weights = weights or [name for name in root if fnmatch(name, "pytorch_model*.bin")]
    if not weights:
        return []
    return sorted({*weights, *(name for name in root if any(fnmatch(name, pattern) for pattern in _BESIDES_WEIGHTS))})
