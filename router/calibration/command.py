"""`power-lever calibrate`: refit the gain model to an operator's own outcomes, and say what changes.

The outcomes are JSON Lines, one object a line: `prompt`, `weak_score` and `strong_score` (0-1; of a model of a small
and of a large tier), and if known `source` and `id`. The pieces' vectors and learned numbers stay as they are shipped;
all else is fitted anew. `auto.gain_model` in `serve_config.yaml` names the file that this writes. With `--config`, the
shares and the present model are those of a profile or a `serve_config.yaml`. A model that does not order these prompts
better than the present one, by more than two standard errors, is not written, and the exit code is 1.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import numpy as np
import yaml
from pydantic import ValidationError

from router.calibration.fit import Fitted, Samples, cross_validated, fit, quality, standard_error
from router.calibration.outcomes import Outcome, read_outcomes, unused_keys
from router.difficulty.classify import difficulty_of
from router.difficulty.gain_model import GainModel, load_gain_model
from router.difficulty.pieces import Floats, load_pieces
from router.errors import ConfigError
from router.registry import DEFAULT_AUTO, TIER_NAMES, AutoSettings

LEAST_PROMPTS: Final = 100
"""Fewer different ones say nothing: the standard error of the APGR would be 0.1 or more."""
SURE: Final = 2.0
"""A gain, and a difference of two models, must be more than this many of its standard errors."""
FOLDS: Final = 5
_FILE: Final = click.Path(path_type=Path)
HIGHEST_DIFFICULTY: Final = (3, 5, 8, 10)
"""Of each tier."""


@click.command(help=__doc__)
@click.option("--data", type=_FILE, required=True, metavar="FILE", help="outcomes (JSON Lines)")
@click.option("--output", type=_FILE, default="gain_model.npz", metavar="FILE", help="write here", show_default=True)
@click.option("--config", type=_FILE, metavar="FILE", help="a profile or serve_config.yaml, for its `auto`")
@click.option("--force", is_flag=True, help="write the model although it is not better")
def command(data: Path, output: Path, config: Path | None, force: bool) -> None:
    """Run the command.

    Raises:
        ConfigError: the data is wrong or too little, or the model is not better than the present one or cannot be
            written.
    """
    check_output(output)
    auto = DEFAULT_AUTO if config is None else auto_of(config)
    found = calibrate(data, auto)
    sys.stdout.write("\n".join(found.lines) + "\n")
    sys.stdout.flush()
    if found.doubt is not None and not force:
        raise ConfigError(f"{found.doubt}, so {output} was not written; --force writes it all the same")
    found.model.save(output)
    named = f"args: {{auto: {{gain_model: {output.resolve()}}}}}"
    if found.doubt is None:
        sys.stdout.write(f"wrote {output}. Put it on every node and name it: {named}\n")
    else:
        sys.stdout.write(f"wrote {output}, because of --force, although {found.doubt}: {named}\n")


@dataclass(frozen=True, slots=True)
class Calibration:
    """A model that was fitted to outcomes, and how it compares with the present one."""

    model: GainModel
    lines: list[str]
    """What changes."""
    doubt: str | None
    """That it is not better than the present one, or None."""


def check_output(path: Path) -> None:
    """Check that a model can be written there, before one is fitted.

    Raises:
        ConfigError: it cannot.
    """
    if path.suffix != ".npz":
        raise ConfigError(f"--output: got {path}, must end with .npz")
    if path.exists() and not path.is_file():
        raise ConfigError(f"--output: {path} cannot be written: it is not a file")
    try:
        if path.exists():
            path.open("ab").close()
        else:
            tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        missing = "" if path.parent.is_dir() else f"there is no folder {path.parent}"
        raise ConfigError(f"--output: {path} cannot be written: {missing or error.strerror}") from error


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


def calibrate(data: Path, auto: AutoSettings = DEFAULT_AUTO) -> Calibration:
    """Return the model that fits the outcomes, and what changes.

    Args:
        data: the outcomes.
        auto: the shares, and the model that is compared.

    Raises:
        ConfigError: the data is wrong or too little.
    """
    outcomes = read_outcomes(data)
    shipped = load_gain_model(auto.gain_model)
    samples = _samples(data, outcomes)
    prompts = [outcome.prompt for outcome in outcomes]
    before = np.array([shipped.gain(prompt) for prompt in prompts], np.float32)
    fitted, after = _fit(data, samples)
    made = fitted.model(samples, after, np.eye(samples.learned.shape[1], dtype=np.float32), fitted.learned())
    now, present = ("as shipped", "the shipped") if auto.gain_model is None else ("as now", "the present")
    old, new = quality(before, samples), quality(after, samples)
    error = standard_error(before, after, samples)
    difference = f"{new - old:+.3f} with a standard error of {error:.3f}"
    unused = unused_keys(outcomes)
    lines = [
        *([f"warning: {data}: keys that are not used: {', '.join(unused)}"] if unused else ()),
        f"{_count(len(outcomes), 'outcome')} of {_count(len(set(samples.sources.tolist())), 'source')}; "
        f"mean gain {samples.mean_gain()[0]:.3f}",
        f"APGR on them: {old:.3f} {now}, {new:.3f} refitted: {difference} "
        f"({FOLDS}-fold cross-validation; 0.5 is a guess)",
        f"shares {'/'.join(TIER_NAMES)} of these prompts: {_shares(shipped, prompts, auto)} {now}, "
        f"{_shares(made, prompts, auto)} refitted",
        f"expected gain from which a prompt leaves {', '.join(TIER_NAMES[:-1])}: {_boundaries(shipped, auto)} {now}, "
        f"{_boundaries(made, auto)} refitted",
    ]
    doubt = None
    if new - old <= SURE * error:  # equal orders have no error, and are no better
        verdict = "is worse than" if old - new > SURE * error else "is not surely better than"
        doubt = f"the refitted model {verdict} {present} one ({difference})"
    return Calibration(made, lines, doubt)


def _samples(data: Path, outcomes: Sequence[Outcome]) -> Samples:
    different = len({outcome.group for outcome in outcomes})
    needed = f"at least {LEAST_PROMPTS} different prompts are needed"
    if different < LEAST_PROMPTS:
        raise ConfigError(
            f"{data}: {_count(len(outcomes), 'outcome')} of {_count(different, 'different prompt')}, {needed}"
        )
    samples = Samples.of(outcomes, load_pieces())
    if (told_apart := samples.told_apart()) < LEAST_PROMPTS:
        raise ConfigError(
            f"{data}: {_count(different, 'different prompt')}, but auto mode can tell only {told_apart} apart, {needed}"
        )
    gain, error = samples.mean_gain()
    if gain <= 0:
        raise ConfigError(f"{data}: the strong model gains nothing over the weak one, so there is nothing to learn")
    if gain <= SURE * error:
        raise ConfigError(
            f"{data}: the strong model does not surely gain over the weak one (mean gain {gain:.3f} with a standard "
            f"error of {error:.3f}), so nothing can be learned from so few outcomes"
        )
    return samples


def _fit(data: Path, samples: Samples) -> tuple[Fitted, Floats]:
    """Return the regressions, and the gains that others expected which did not see the sample."""
    with np.errstate(all="ignore"):  # what comes out is looked at instead
        after, fitted = cross_validated(samples, FOLDS, seed=0), fit(samples)
    if not (np.isfinite(after).all() and np.isfinite(fitted.coefficients).all() and np.ptp(after) > 0):
        raise ConfigError(f"{data}: the prompts are too much alike, or their scores are, so there is nothing to learn")
    return fitted, after


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


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
