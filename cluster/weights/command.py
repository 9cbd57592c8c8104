"""`power-lever weights`: seed, list and verify a profile's models, or make an early-exit draft."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import click

from cluster.profiles.reading import load_profile
from cluster.weights.early_exit.calibration import Calibration
from cluster.weights.errors import WeightsError
from cluster.weights.folder import State, format_size, is_complete, model_path, models_dir, state_of, verify
from cluster.weights.hub import HubAccess
from cluster.weights.inventory import inventory, table
from cluster.weights.manifest import read_manifest
from cluster.weights.seeding import Seeder, select
from router.errors import ConfigError
from router.registry import ModelSource, Profile

_DEFAULT: Final = Calibration()
_PROFILE_HELP: Final = (
    "local, gpu, plan:L4:1 with your GPUs, the path of a profile's YAML file, or auto: what is served here"
)


class _Weights(click.Group):
    """Its commands end with 0: done; 1: failed, and the reason is one line; 130: Ctrl-C."""

    def invoke(self, ctx: click.Context) -> int:
        try:
            return int(super().invoke(ctx))
        except (ConfigError, WeightsError) as error:
            _print_error(error)
            return 1
        except KeyboardInterrupt:
            print("interrupted; run it again and it continues", file=sys.stderr)
            return 130


@click.group(cls=_Weights)
def command() -> None:
    """Seed, list and verify a profile's models, or make a draft."""


def _folder(ctx: click.Context, parameter: click.Parameter, given: str | None) -> Path:
    return Path(given).expanduser().absolute() if given else models_dir(os.environ)


_models_dir = click.option(
    "--models-dir", "folder", callback=_folder, help="default: MODELS_DIR, else `models` in the repository"
)
_profile_name = click.option("--profile", required=True, help=_PROFILE_HELP)
_only = click.option("--only", metavar="MODEL", help="only this model (a large one still needs --large)")
_large = click.option("--large", is_flag=True, help="include the models that the profile marks as large")


def _profile(name: str) -> Profile:
    if name != "auto":
        return load_profile(name)
    from cluster.profiles.auto import name_of_auto  # imports Ray

    name, reason = name_of_auto()
    _print_line(f"profile {name}: {reason}")
    return load_profile(name)


@command.command()
@_models_dir
@_profile_name
@_only
@_large
@click.option(
    "--update",
    is_flag=True,
    help="move to the commit that the profile's revision stands for now; without it a model keeps its commit",
)
def seed(folder: Path, profile: str, only: str | None, large: bool, update: bool) -> int:
    """Download or make the models that are missing."""
    loaded = _profile(profile)
    chosen, skipped = select(loaded.models, large=large, only=only)
    seeder = Seeder(folder, HubAccess.of(os.environ), _print_line)
    failed = []
    for key in chosen:  # seed the others if one fails: tiers can start on what is there
        try:
            source = loaded.models[key]
            seeder.seed(key, source, again=update and seeder.has_moved(key, source))
        except WeightsError as error:
            _print_error(error)
            failed.append(key)
    for key in skipped:
        planned = format_size(round(loaded.models[key].size_gb * 1e9))
        _print_line(f"{key}: skipped, large ({planned}): add --large to seed it")
    return 1 if failed else 0


@command.command("list")
@_models_dir
@_profile_name
@_only
@_large
def list_(folder: Path, profile: str, only: str | None, large: bool) -> int:
    """Show the models, their size and their state."""
    loaded = _profile(profile)
    chosen = set().union(*select(loaded.models, large=True, only=only))
    _print_line(f"models folder: {folder}\n")
    _print_line(table(row for row in inventory(loaded, folder) if row.model in chosen))
    return 0


@command.command("verify")
@_models_dir
@_profile_name
@_only
@_large
def verify_(folder: Path, profile: str, only: str | None, large: bool) -> int:
    """Read all files again and compare checksums."""
    chosen, skipped = select(_profile(profile).models, large=large, only=only)
    chosen += [key for key in skipped if state_of(folder, key) is not State.MISSING]
    problems = 0
    for key in chosen:
        problem = verify(folder, key)
        if problem is None:
            _print_line(f"{key}: as seeded")
        else:
            _print_error(problem)
            problems += 1
    return 1 if problems else 0


@command.command()
@_models_dir
@click.option(
    "--layers", required=True, type=click.IntRange(1), metavar="N", help="how many of the target's layers it has"
)
@click.option("--model", metavar="NAME", help="the target, in the models folder; default: the profile's bundled model")
@click.option("--name", help="the draft's name in the models folder; default: MODEL-early-exit-N")
@click.option("--profile", default="local", show_default=True, help=_PROFILE_HELP)
@click.option(
    "--tokens",
    type=click.IntRange(1),
    default=_DEFAULT.tokens,
    show_default=True,
    metavar="N",
    help="how many tokens the target writes",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=_DEFAULT.seed,
    show_default=True,
    metavar="N",
    help="the same seed makes the same draft",
)
@click.option("--force", is_flag=True, help="replace a draft of that name")
def early_exit(
    folder: Path, layers: int, model: str | None, name: str | None, profile: str, tokens: int, seed: int, force: bool
) -> int:
    """Make a draft model: the target's first layers, and an output layer fitted on the target's answers."""
    target = model or _bundled_model(_profile(profile))
    if not model_path(folder, target).is_dir():
        complete = sorted(path.name for path in folder.glob("*") if is_complete(path))
        raise WeightsError(f"no model {target!r} in {folder}: it has {', '.join(complete) or 'none'}")
    draft = name or f"{target}-early-exit-{layers}"
    _check_name(model_path(folder, draft), force=force)
    source = ModelSource(source="early_exit", of=target, layers=layers)
    calibration = Calibration(tokens=tokens, seed=seed)
    Seeder(folder, HubAccess.of(os.environ), _print_line, calibration).seed(draft, source, again=force)
    return 0


def _bundled_model(profile: Profile) -> str:
    bundled = [key for key, source in profile.models.items() if source.source == "bundled"]
    if len(bundled) != 1:
        raise WeightsError(f"which model? The profile has {', '.join(profile.models)}: name one with --model")
    return bundled[0]


def _check_name(path: Path, *, force: bool) -> None:
    """Refuse to replace a draft without `force`, and any other model always."""
    present = read_manifest(path)
    if present is not None and present.source != "early_exit":
        raise WeightsError(f"{path} is not a draft, so no draft may replace it: give another --name")
    if is_complete(path) and not force:
        raise WeightsError(f"{path} exists: --force replaces it, --name gives another name")


def _print_line(line: str) -> None:
    print(line, flush=True)


def _print_error(error: object) -> None:
    print(f"error: {error}", file=sys.stderr, flush=True)
