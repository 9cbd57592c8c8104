"""Train what auto mode has learned: `router/difficulty/pieces.npz` and `gain_model.npz`.

The pieces are the bundled model's vocabulary; their vectors are its input embeddings in the directions in which the
prompts' means differ most. The gain model is fitted to the outcomes. The same data and versions give the same files.

    python -m bench.train_router            # write both files
    python -m bench.train_router --check    # change nothing; fail if the shipped model orders prompts otherwise
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from bench.quality.sources import ROUTING, read_anchors, read_sources
from bench.reporting.report import REPOSITORY
from router.calibration.fit import Samples, cross_validated, fit
from router.calibration.outcomes import Outcome
from router.difficulty.gain_model import GAIN_MODEL_FILE, GainModel
from router.difficulty.pieces import PIECES_FILE, Floats, Pieces

MODEL: Final = REPOSITORY / "models" / "smollm2-135m-instruct"
DIMENSIONS: Final = 12
"""Of a piece's vector. More are no better in cross-validation."""
NUMBERS: Final = 8
"""Learned numbers of a piece."""
FOLDS: Final = 5
"""Of the cross-validation that says how gains spread."""
SAME_SCORE: Final = 0.02
"""Scores that differ by less are the same: other versions of libraries round otherwise."""


def vocabulary(model: Path) -> dict[str, int]:
    """Return the pieces of a model with byte-level tokens: the text of each, and its row in the embeddings.

    Only lower-case pieces without inner space are kept. A piece that begins a word begins with a space.
    """
    tokens: dict[str, int] = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    code_of = {character: byte for byte, character in enumerate(_byte_characters())}
    found: dict[str, int] = {}
    for token, row in tokens.items():
        if any(character not in code_of for character in token):
            continue
        data = bytes(code_of[character] for character in token)
        if len(data) == 1:
            found[f"<0x{data[0]:02X}>"] = row
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            continue
        body = text.removeprefix(" ")
        if body and body == body.lower() and not any(map(str.isspace, body)):
            found[text] = row
    return found


def embedded(model: Path) -> Pieces:
    """Return the pieces with their whole embeddings."""
    from safetensors import safe_open

    with safe_open(model / "model.safetensors", "pt") as stored:
        embeddings = stored.get_tensor("model.embed_tokens.weight").float().numpy()
    index = vocabulary(model)
    return Pieces({piece: row for row, piece in enumerate(index)}, embeddings[list(index.values())], learned=0)


def training_samples(outcomes: Sequence[Outcome], whole: Pieces) -> tuple[Samples, Floats]:
    """Return the samples that learn from whole embeddings, and the axes on which the kernel compares: (whole, few).

    The axes are those in which the prompts' means differ most. They see prompts and no outcomes.
    """
    samples = Samples.of(outcomes, whole)
    means = samples.piece_means
    axes = _widest(means, samples.weights(), DIMENSIONS)
    return dataclasses.replace(samples, piece_means=means @ axes, learned=means), axes


def train(outcomes: Sequence[Outcome], whole: Pieces) -> tuple[Pieces, GainModel]:
    """Return the pieces, with their learned numbers, and the gain model."""
    samples, axes = training_samples(outcomes, whole)
    fitted = fit(samples)
    unseen = cross_validated(samples, FOLDS, seed=0)
    numbers, weights = few_numbers(samples, fitted.learned())
    vectors = np.concatenate([whole.vectors @ axes, whole.vectors @ numbers], axis=1)
    return Pieces(whole.index, vectors, numbers.shape[1]), fitted.model(samples, unseen, numbers, weights)


def few_numbers(samples: Samples, learned: Floats) -> tuple[Floats, Floats]:
    """Return coefficients (whole, outputs) as the product of two matrices: (whole, numbers) and (numbers, outputs).

    The first number is the gain's own; the others are what tells kinds best.
    """
    axes = _widest(samples.learned @ learned[:, 1:], samples.weights(), NUMBERS - 1)
    weights = np.zeros((1 + axes.shape[1], learned.shape[1]), np.float32)
    weights[0, 0] = 1
    weights[1:, 1:] = axes.T
    return np.concatenate([learned[:, :1], learned[:, 1:] @ axes], axis=1), weights


def _widest(values: Floats, weights: Floats, count: int) -> Floats:
    """Return the directions in which weighted values differ most: (values, count)."""
    centred = (values - weights @ values).astype(np.float64)
    _, axes = np.linalg.eigh(centred.T @ (centred * weights[:, None]))
    axes = axes[:, ::-1][:, :count]
    axes *= np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])  # either sign is right; take one
    few: Floats = axes.astype(np.float32)
    return few


def save_pieces(pieces: Pieces, path: Path) -> None:
    """Write the pieces, with eight bits a number."""
    scales = (np.quantile(np.abs(pieces.vectors), 0.9999, axis=0) / 127).astype(np.float32)
    names = "\n".join(pieces.index).encode("utf-8")
    np.savez_compressed(
        path,
        names=np.frombuffer(names, np.uint8),
        vectors=np.clip(np.round(pieces.vectors / np.maximum(scales, 1e-12)), -127, 127).astype(np.int8),
        scales=scales,
        learned=np.array(pieces.learned),
    )


def scores_of(folder: Path, outcomes: Sequence[Outcome]) -> Floats:
    """Return the score (0-1) of each prompt by the model and the pieces of a folder.

    Raises:
        ConfigError: there is no model.
    """
    pieces, model = Pieces.load(folder / PIECES_FILE.name), GainModel.load(folder / GAIN_MODEL_FILE.name)
    return np.array([model.share_below(model.gain(outcome.prompt, pieces)) for outcome in outcomes], np.float32)


def main(arguments: Sequence[str]) -> None:
    """Train, and write or compare the files."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.train_router", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=ROUTING, metavar="FOLDER", help=f"outcomes (default {ROUTING})")
    parser.add_argument("--model", type=Path, default=MODEL, metavar="FOLDER", help="whose embeddings the pieces have")
    parser.add_argument("--output", type=Path, default=GAIN_MODEL_FILE.parent, metavar="FOLDER", help="of both files")
    parser.add_argument("--check", action="store_true", help="fail if the files there order prompts otherwise")
    args = parser.parse_args(arguments)

    outcomes = read_sources(args.data) + read_anchors()
    pieces, model = train(outcomes, embedded(args.model))
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) if args.check else args.output
        save_pieces(pieces, folder / PIECES_FILE.name)
        model.save(folder / GAIN_MODEL_FILE.name)
        if args.check:
            apart = np.abs(scores_of(folder, outcomes) - scores_of(args.output, outcomes)).max()
            if apart >= SAME_SCORE:
                sys.exit(f"{args.output} is not what this fits to {args.data}: scores differ by up to {apart:.2f}")
            return
    for name in (PIECES_FILE.name, GAIN_MODEL_FILE.name):
        file = args.output / name
        print(f"{file}: {file.stat().st_size} bytes, from {len(outcomes)} outcomes")


def _byte_characters() -> list[str]:
    """Return the character by which byte-level tokenizers write each byte (GPT-2's `bytes_to_unicode`)."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(0x100)]


if __name__ == "__main__":
    main(sys.argv[1:])
