"""The bundled model as `make weights` made it from the GGUF of the installed package."""

from __future__ import annotations

import json
from pathlib import Path

from cluster.profiles.reading import load_profile
from cluster.weights import is_complete, models_dir
from cluster.weights.hub import HubAccess
from cluster.weights.seeding import Seeder
from tests.support.e2e_app import MODEL

END_OF_TURN = 2


def test_the_model_is_whole_and_readable_by_an_engine_of_another_user(bundled_model: Path) -> None:
    assert is_complete(bundled_model)
    assert {file.stat().st_mode & 0o777 for file in bundled_model.iterdir()} == {0o644}


def test_a_second_seed_does_nothing(bundled_model: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in bundled_model.iterdir()}
    messages: list[str] = []
    # Port 9 of this machine answers nobody: a bundled model must need no hub.
    seeder = Seeder(models_dir({}), HubAccess("http://127.0.0.1:9", False), messages.append)
    assert seeder.seed(MODEL, load_profile("local").models[MODEL]) == "kept"
    assert {path: path.stat().st_mtime_ns for path in bundled_model.iterdir()} == before
    assert "nothing to do" in messages[0]


def test_its_config_tells_the_engine_to_stop_at_the_end_of_a_turn(bundled_model: Path) -> None:
    config = json.loads((bundled_model / "config.json").read_text())
    assert (config["architectures"], config["dtype"], config["eos_token_id"]) == (["LlamaForCausalLM"], "bfloat16", 2)
    assert config["max_position_embeddings"] == 8192
    generation = json.loads((bundled_model / "generation_config.json").read_text())
    assert generation["eos_token_id"] == END_OF_TURN
    assert "quantization_config" not in config


def test_text_survives_the_tokenizer_and_turns_end_with_their_marker(bundled_model: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(bundled_model)
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.eos_token_id == END_OF_TURN
    text = "Grüße, 你好 👋🏽\n\tdef f(x): return x ** 2"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    # The markers are single tokens, not spelled out.
    assert tokenizer.encode("<|im_end|>") == [END_OF_TURN]
