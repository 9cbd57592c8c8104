"""Training writes files that `--check` knows again, and that order prompts by what they gain."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bench.train_router import DIMENSIONS, NUMBERS, main
from router.difficulty.gain_model import GainModel
from router.difficulty.pieces import Pieces

FRUIT = ("apple", "pear", "plum", "cherry", "grape", "melon")
METAL = ("iron", "copper", "zinc", "nickel", "silver", "cobalt")
SOURCES = ("market", "smithy")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model whose tokens are these words."""
    words = [f"\u0120{word}" for word in (*FRUIT, *METAL)]  # byte-level tokenizers write a space so
    folder = tmp_path / "model"
    folder.mkdir()
    vocabulary = {"model": {"vocab": {word: row for row, word in enumerate(words)}}}
    (folder / "tokenizer.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    embeddings = np.random.default_rng(0).normal(size=(len(words), 32)).astype(np.float32)
    save_file({"model.embed_tokens.weight": embeddings}, folder / "model.safetensors")
    return folder


def outcomes(folder: Path, gaining: tuple[str, ...]) -> Path:
    """Two sources, in which the strong model gains on some words."""
    rng = random.Random(5)
    folder.mkdir()
    for source in SOURCES:
        lines = []
        for number in range(40):
            words = (FRUIT, METAL)[number % 2]
            gain = float(words is gaining)
            prompt = " ".join(rng.choices(words, k=8))
            lines.append(json.dumps({"source": source, "prompt": prompt, "weak_score": 0, "strong_score": gain}))
        (folder / f"{source}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


def test_what_was_trained_is_known_again_and_other_outcomes_are_not(tmp_path: Path, model: Path) -> None:
    output = tmp_path / "trained"
    output.mkdir()
    metals, fruit = outcomes(tmp_path / "metals", METAL), outcomes(tmp_path / "fruit", FRUIT)
    files = ["--model", str(model), "--output", str(output)]
    main(["--data", str(metals), *files])

    pieces, gain_model = Pieces.load(output / "pieces.npz"), GainModel.load(output / "gain_model.npz")
    assert (pieces.vectors.shape, pieces.learned) == ((len(FRUIT + METAL), DIMENSIONS + NUMBERS), NUMBERS)
    assert gain_model.gain("zinc and iron", pieces) > gain_model.gain("pear and plum", pieces)

    before = (output / "gain_model.npz").read_bytes()
    main(["--data", str(metals), *files, "--check"])
    with pytest.raises(SystemExit, match=r"is not what this fits to .*fruit: scores differ by up to"):
        main(["--data", str(fruit), *files, "--check"])
    assert (output / "gain_model.npz").read_bytes() == before
