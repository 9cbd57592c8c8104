"""Folders that stand in for models which are not in the models folder: the shape of the catalogue's, no weights.

vLLM makes up weights of that shape (`load_format: dummy`), and reads a tokenizer, of which any will do: one character
is one token here. So an engine's speed can be measured on a machine that cannot download anything.
"""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Final

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from bench.kit.model_configs import write_eagle3, write_model
from cluster.catalogue.types import Catalogue

_SPECIAL: Final = ("<unk>", "<s>", "</s>")
_TEMPLATE: Final = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def write_stand_in(folder: Path, key: str, known: Catalogue) -> bool:
    """Write the folder of a model, and return whether the catalogue knows it. What is there already stays."""
    if (folder / "config.json").is_file():
        return True
    head = known.eagle3_heads.get(key)
    if head is not None:
        target = next((model for model in known.models.values() if model.eagle3 == key), None)
        if target is None:
            return False
        write_eagle3(folder, head, target)
    elif key in known.models:
        write_model(folder, known.models[key])
    else:
        return False
    _write_tokenizer(folder)
    return True


def _write_tokenizer(folder: Path) -> None:
    vocabulary = {token: number for number, token in enumerate((*_SPECIAL, *string.printable))}
    characters = Tokenizer(models.WordLevel(vocabulary, unk_token=_SPECIAL[0]))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    characters.decoder = decoders.Fuse()
    characters.add_special_tokens(list(_SPECIAL))
    characters.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": _SPECIAL[0],
        "bos_token": _SPECIAL[1],
        "eos_token": _SPECIAL[2],
        "clean_up_tokenization_spaces": False,
        "chat_template": _TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
