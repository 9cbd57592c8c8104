"""Train the router's gain model (`router/difficulty/gain_model.yaml`) on outcomes of a weak and a strong model.

The same data on the same versions gives the same file. Its numbers are rounded, so that the last bits of another
machine make no difference.

    python -m bench.train_router            # write the file
    python -m bench.train_router --check    # change nothing; fail if the file differs
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from bench.quality.bare_prompt import bare_prompt
from bench.quality.gain_fit import Sample, best_stiffness, fit
from bench.quality.outcomes import OUTCOMES, Outcome, folds, groups, read_outcomes
from router.difficulty.classify import Ruling, rule
from router.difficulty.gain_model import GAIN_MODEL_FILE, GainModel

FOLDS: Final = 5
SEED: Final = 0


@dataclass(frozen=True, slots=True)
class Task:
    """An outcome, and the rules' ruling on its prompt as given and bare of its benchmark's template."""

    outcome: Outcome
    given: Ruling
    bare: Ruling

    @classmethod
    def of(cls, outcome: Outcome) -> Task:
        """Return the task of an outcome."""
        return cls(outcome, rule(outcome.prompt), rule(bare_prompt(outcome.prompt)))

    def samples(self) -> tuple[Sample, Sample]:
        """Return what the model learns from it."""
        gain = self.outcome.gain
        return Sample(self.given.features, gain, 0.5), Sample(self.bare.features, gain, 0.5)


def train(tasks: Sequence[Task], keys: Sequence[object], seed: int = SEED) -> tuple[GainModel, float]:
    """Return the model and its stiffness, which is chosen by cross-validation.

    Args:
        tasks: to learn from.
        keys: one for each task; tasks of one key are never on both sides of the cross-validation.
        seed: of the cross-validation's folds.
    """
    order = list(range(len(tasks)))
    random.Random(seed).shuffle(order)
    parts = folds(keys, FOLDS, order)
    pairs = [(_samples(tasks, _others(parts, part)), _samples(tasks, part)) for part in parts]
    stiffness = best_stiffness(pairs)
    return fit(_samples(tasks, range(len(tasks))), stiffness), stiffness


def _others(parts: Sequence[Sequence[int]], left_out: Sequence[int]) -> list[int]:
    return sorted(index for part in parts if part is not left_out for index in part)


def _samples(tasks: Sequence[Task], indices: Sequence[int]) -> list[Sample]:
    return [sample for index in indices for sample in tasks[index].samples()]


def text_of(model: GainModel, rows: int, stiffness: float) -> str:
    """Return the text of `router/difficulty/gain_model.yaml`."""
    header = (
        f"# What a strong model gains over a weak one, by the form of the prompt, learned from {rows} outcomes.\n"
        f"# Written by `python -m bench.train_router` (stiffness {stiffness:g}); do not edit.\n"
    )
    return header + yaml.safe_dump(model.model_dump(mode="json"), sort_keys=False, default_flow_style=None, width=120)


def main() -> None:
    """Train, and write or compare the file."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.train_router", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=OUTCOMES, metavar="FILE", help=f"outcomes (default {OUTCOMES})")
    parser.add_argument("--check", action="store_true", help="fail if the committed file differs")
    args = parser.parse_args()

    outcomes = read_outcomes(args.data)
    model, stiffness = train([Task.of(outcome) for outcome in outcomes], groups(outcomes))
    source = text_of(model, len(outcomes), stiffness)
    if not args.check:
        GAIN_MODEL_FILE.write_text(source, encoding="utf-8")
        print(f"{GAIN_MODEL_FILE}: {len(outcomes)} outcomes, stiffness {stiffness:g}, {len(source)} bytes")
    elif GAIN_MODEL_FILE.read_text(encoding="utf-8") != source:
        sys.exit(f"{GAIN_MODEL_FILE} is not what this writes from {args.data}")


if __name__ == "__main__":
    main()
