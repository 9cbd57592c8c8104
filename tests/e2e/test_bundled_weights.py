"""The bundled model, converted from the GGUF of the installed package (about 30 s)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster.profiles.reading import load_profile
from cluster.weights import is_complete, missing_reason, model_path
from cluster.weights.hub import HubAccess
from cluster.weights.seeding import Seeder

pytest.importorskip("torch", reason="the conversion needs torch: pip install --no-deps -r requirements/cpu.txt")
pytest.importorskip("transformers", reason="the conversion needs transformers")

KEY = "smollm2-135m-instruct"
END_OF_TURN = 2


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    assert seed(folder, []) == "seeded"
    return folder


def seed(folder: Path, lines: list[str]) -> str:
    # Port 9 of this machine answers nobody: a bundled model must need no hub.
    return Seeder(folder, HubAccess("http://127.0.0.1:9", False), lines.append).seed(
        KEY, load_profile("local").models[KEY]
    )


def test_the_model_is_complete_and_readable_by_an_engine_of_another_user(models: Path) -> None:
    path = model_path(models, KEY)
    assert is_complete(path)
    assert missing_reason(models, KEY) is None
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {0o644}


def test_a_second_seed_does_nothing(models: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in models.rglob("*")}
    lines: list[str] = []
    assert seed(models, lines) == "kept"
    assert {path: path.stat().st_mtime_ns for path in models.rglob("*")} == before
    assert "nothing to do" in lines[0]


def test_the_engine_is_told_to_stop_at_the_end_of_a_turn(models: Path) -> None:
    path = model_path(models, KEY)
    config = json.loads((path / "config.json").read_text())
    assert (config["architectures"], config["dtype"], config["eos_token_id"]) == (["LlamaForCausalLM"], "bfloat16", 2)
    assert config["max_position_embeddings"] == 8192
    generation = json.loads((path / "generation_config.json").read_text())
    assert generation["eos_token_id"] == END_OF_TURN
    assert "quantization_config" not in config


def test_text_survives_the_tokenizer_and_chats_end_where_the_model_was_taught(models: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_path(models, KEY))
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


def test_the_model_answers_and_stops_by_itself(models: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = model_path(models, KEY)
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, return_tensors="pt"
    )["input_ids"]
    answer = model.generate(prompt, max_new_tokens=60, do_sample=False)[0, prompt.shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
    assert answer[-1] == END_OF_TURN
