"""Transformers, and so vLLM, reads the tiny model's checkpoint as it was made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny_llama import BOS_ID, DRAFT, EOS_ID, MAX_LENGTH, VOCABULARY, tokenizer, write_tiny_llama

TEXT = "The lever: is it?\nYes"


def test_transformers_loads_the_checkpoint_and_computes_the_same_logits(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers: requirements/cpu.txt")
    torch = pytest.importorskip("torch", reason="needs torch: requirements/cpu.txt")
    write_tiny_llama(tmp_path / "m", DRAFT)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    assert (loaded.bos_token_id, loaded.eos_token_id, loaded.model_max_length) == (BOS_ID, EOS_ID, MAX_LENGTH)
    chat = [{"role": "user", "content": "Hi there"}]
    assert loaded.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) == "Hi there\n- "
    ids = loaded(TEXT)["input_ids"]
    assert ids == tokenizer().encode(TEXT).ids
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float64)
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].numpy()
    # Its rotary angles are float32.
    assert logits.shape == (len(ids), VOCABULARY)
    assert DRAFT.logits(ids) == pytest.approx(logits, abs=1e-5)
