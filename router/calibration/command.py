"""`power-lever calibrate`: refit the gain model to an operator's own outcomes, and say what changes.

The outcomes are JSON Lines, one object a line: `prompt`, `weak_score` and `strong_score` (0-1; of a model of a small
and of a large tier), and if known `source` and `id`. The pieces' vectors and learned numbers stay as they are shipped;
all else is fitted anew. `auto.gain_model` in `serve_config.yaml` names the file that this writes. With `--config`, the
shares and the present model are those of a profile or a `serve_config.yaml`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import yaml
from pydantic import ValidationError

from router.calibration.fit import Samples, cross_validated, fit, quality
from router.calibration.outcomes import read_outcomes
from router.difficulty.classify import difficulty_of
from router.difficulty.gain_model import GainModel, load_gain_model
from router.difficulty.pieces import load_pieces
from router.errors import ConfigError
from router.registry import DEFAULT_AUTO, TIER_NAMES, AutoSettings

LEAST_OUTCOMES: Final = 100
"""Fewer say nothing: the standard error of the APGR would be 0.1 or more."""
FOLDS: Final = 5
HIGHEST_DIFFICULTY: Final = (3, 5, 8, 10)
"""Of each tier."""


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit code.

    Raises:
        ConfigError: the data is wrong or too little.
    """
    parser = argparse.ArgumentParser(
        prog="power-lever calibrate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", help="outcomes (JSON Lines)")
    parser.add_argument(
        "--output", type=Path, default=Path("gain_model.npz"), metavar="FILE", help="write here (gain_model.npz)"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="a profile or serve_config.yaml, for its `auto`")
    args = parser.parse_args(arguments)
    if args.output.suffix != ".npz":
        raise ConfigError(f"--output: got {args.output}, must end with .npz")
    auto = DEFAULT_AUTO if args.config is None else auto_of(args.config)
    sys.stdout.write("\n".join(calibrate(args.data, args.output, auto)) + "\n")
    return 0


def auto_of(path: Path) -> AutoSettings:
    """Return `auto` of a profile's YAML, or of the arguments of a `serve_config.yaml`'s application.

    Raises:
        ConfigError: it cannot be read, or its `auto` is wrong.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
        for application in raw.get("applications", ())[:1]:
            raw = application.get("args") or {}
        return AutoSettings.model_validate(raw.get("auto") or {})
    except ValidationError as error:
        raise ConfigError.of(error, AutoSettings, f"{path}: auto") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError, AttributeError, TypeError) as error:
        raise ConfigError(f"{path}: is no profile and no serve_config.yaml: {error}") from error


def calibrate(data: Path, output: Path, auto: AutoSettings = DEFAULT_AUTO) -> list[str]:
    """Write the model that fits the outcomes, and return what changes, in lines.

    Args:
        data: the outcomes.
        output: the model's file.
        auto: the shares, and the model that is compared.

    Raises:
        ConfigError: the data is wrong or too little.
    """
    outcomes = read_outcomes(data)
    if len(outcomes) < LEAST_OUTCOMES:
        raise ConfigError(f"{data}: {len(outcomes)} outcomes, at least {LEAST_OUTCOMES} are needed")
    samples = Samples.of(outcomes, load_pieces())
    if float(samples.weights() @ samples.gains) <= 0:
        raise ConfigError(f"{data}: the strong model gains nothing over the weak one, so there is nothing to learn")
    shipped = load_gain_model(auto.gain_model)
    prompts = [outcome.prompt for outcome in outcomes]
    before = np.array([shipped.gain(prompt) for prompt in prompts], np.float32)
    after = cross_validated(samples, FOLDS, seed=0)
    fitted = fit(samples)
    made = fitted.model(samples, after, np.eye(samples.learned.shape[1], dtype=np.float32), fitted.learned())
    made.save(output)
    now = "as shipped" if auto.gain_model is None else "as now"
    return [
        f"{len(outcomes)} outcomes of {len(set(samples.sources.tolist()))} sources; "
        f"mean gain {float(samples.weights() @ samples.gains):.3f}",
        f"APGR on them: {quality(before, samples):.3f} {now}, {quality(after, samples):.3f} refitted "
        f"({FOLDS}-fold cross-validation; 0.5 is a guess)",
        f"shares {'/'.join(TIER_NAMES)} of these prompts: {_shares(shipped, prompts, auto)} {now}, "
        f"{_shares(made, prompts, auto)} refitted",
        f"expected gain from which a prompt leaves {', '.join(TIER_NAMES[:-1])}: {_boundaries(shipped, auto)} {now}, "
        f"{_boundaries(made, auto)} refitted",
        f"wrote {output}. Put it on every node and name it: args: {{auto: {{gain_model: {output.resolve()}}}}}",
    ]


def _shares(model: GainModel, prompts: Sequence[str], auto: AutoSettings) -> str:
    difficulties = [difficulty_of(model.score(prompt), auto.shares) for prompt in prompts]
    lows = (0, *HIGHEST_DIFFICULTY)
    counts = [
        sum(low < one <= high for one in difficulties) for low, high in zip(lows, HIGHEST_DIFFICULTY, strict=False)
    ]
    return "/".join(f"{100 * count / len(prompts):.0f}" for count in counts)


def _boundaries(model: GainModel, auto: AutoSettings) -> str:
    ends = np.cumsum(auto.shares[:-1]) / 100
    return ", ".join(f"{np.quantile(model.quantiles, end):.3f}" for end in ends)
