"""The tiny model is what its checkpoint holds, and its distributions are fit for statistical tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from tests.support.tiny_llama import (
    CHARACTERS,
    DRAFT,
    EOS_ID,
    SPECIAL_TOKENS,
    TARGET,
    VOCABULARY,
    Array,
    TinyLlama,
    write_tiny_llama,
)

TEXT = "The lever: is it?\nYes"


@cache
def texts() -> list[list[int]]:
    random = np.random.default_rng(0)
    return [random.integers(len(SPECIAL_TOKENS), VOCABULARY, random.integers(8, 30)).tolist() for _ in range(100)]


def distributions(model: TinyLlama, temperature: float) -> Array:
    return np.array([model.distribution(text, temperature) for text in texts()])


def total_variations(p: Array, q: Array) -> Array:
    halves: Array = np.abs(p - q).sum(axis=1) / 2
    return halves


@pytest.mark.parametrize(("temperature", "least", "most"), [(0.5, 1.0, 2.5), (1.0, 2.5, 3.5)])
def test_distributions_are_neither_flat_nor_peaked(temperature: float, least: float, most: float) -> None:
    p = distributions(TARGET, temperature)
    entropies = -(p * np.log(p)).sum(axis=1)
    # In nats; all 64 tokens alike have 4.16, one certain token has 0.
    assert least < entropies.mean() < most
    assert p.max(axis=1).mean() < 0.6
    # Few answers end early.
    assert p[:, EOS_ID].mean() < 0.02


@pytest.mark.parametrize(
    ("temperature", "sampled", "certain"),
    # Acceptance of drafts that are sampled from the draft model, and of its most likely token.
    [(0.5, (0.6, 0.75), (0.35, 0.5)), (1.0, (0.7, 0.85), (0.15, 0.25))],
)
def test_the_draft_is_accepted_often_and_not_always(
    temperature: float, sampled: tuple[float, float], certain: tuple[float, float]
) -> None:
    p, q = distributions(TARGET, temperature), distributions(DRAFT, temperature)
    assert sampled[0] < 1 - total_variations(p, q).mean() < sampled[1]
    assert certain[0] < p[range(len(p)), q.argmax(axis=1)].mean() < certain[1]


@pytest.mark.parametrize("place", [1, 2, 5, 8])
def test_each_token_of_the_past_changes_the_distribution(place: int) -> None:
    # So a KV cache that keeps a rejected draft, or loses an accepted one, shows in the tokens after it.
    others = [[*text[:-place], (text[-place] + 7) % VOCABULARY, *text[len(text) - place + 1 :]] for text in texts()]
    p = np.array([TARGET.distribution(text) for text in texts()])
    q = np.array([TARGET.distribution(text) for text in others])
    assert total_variations(p, q).mean() > 0.1


def test_the_tokenizer_has_one_token_per_character_and_restores_the_text(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "m", TARGET)
    loaded = Tokenizer.from_file(str(tmp_path / "m" / "tokenizer.json"))
    assert loaded.get_vocab_size() == VOCABULARY == 64
    assert loaded.encode(CHARACTERS).ids == list(range(len(SPECIAL_TOKENS), VOCABULARY))
    assert loaded.encode("a</s>é").ids == [len(SPECIAL_TOKENS), EOS_ID, 0]
    ids = loaded.encode(TEXT).ids
    assert loaded.decode(ids) == TEXT
    stream = DecodeStream(skip_special_tokens=True)
    assert [stream.step(loaded, token_id) for token_id in ids[:4]] == list("The ")
