"""`power-lever weights`: seed, list and verify a profile's models, or make an early-exit draft."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

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

_DEFAULT = Calibration()


def main(arguments: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """Run the command; return the exit code: 0 done, 1 failed (the reason is one line), 130 Ctrl-C."""
    options = _parser().parse_args(arguments)
    folder = Path(options.models_dir).expanduser().absolute() if options.models_dir else models_dir(env)
    try:
        return int(options.run(folder, options, env))
    except (ConfigError, WeightsError) as error:
        _print_error(error)
        return 1
    except KeyboardInterrupt:
        print("interrupted; run it again and it continues", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="power-lever weights", description=__doc__)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--models-dir", help="default: MODELS_DIR, else `models` in the repository")
    of_profile = argparse.ArgumentParser(add_help=False, parents=[shared])
    profile_help = (
        "local, gpu, plan:L4:1 with your GPUs, the path of a profile's YAML file, or auto: what is served here"
    )
    of_profile.add_argument("--profile", required=True, help=profile_help)
    of_profile.add_argument("--only", metavar="MODEL", help="only this model (a large one still needs --large)")
    of_profile.add_argument("--large", action="store_true", help="include the models that the profile marks as large")

    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    seed = commands.add_parser("seed", parents=[of_profile], help="download or make the models that are missing")
    update_help = "move to the commit that the profile's revision stands for now; without it a model keeps its commit"
    seed.add_argument("--update", action="store_true", help=update_help)
    seed.set_defaults(run=_seed)
    list_ = commands.add_parser("list", parents=[of_profile], help="show the models, their size and their state")
    list_.set_defaults(run=_list)
    check = commands.add_parser("verify", parents=[of_profile], help="read all files again and compare checksums")
    check.set_defaults(run=_verify)

    description = "Make a draft model: the target's first layers, and an output layer fitted on the target's answers."
    draft = commands.add_parser("early-exit", parents=[shared], help="make a draft model", description=description)
    draft.set_defaults(run=_early_exit)
    add = draft.add_argument
    add("--layers", required=True, type=_at_least(1), metavar="N", help="how many of the target's layers it has")
    add("--model", metavar="NAME", help="the target, in the models folder; default: the profile's bundled model")
    add("--name", help="the draft's name in the models folder; default: MODEL-early-exit-N")
    add("--profile", default="local", help=f"{profile_help} (default: %(default)s)")
    tokens_help = "how many tokens the target writes (default: %(default)s)"
    add("--tokens", type=_at_least(1), default=_DEFAULT.tokens, metavar="N", help=tokens_help)
    seed_help = "the same seed makes the same draft (default: %(default)s)"
    add("--seed", type=_at_least(0), default=_DEFAULT.seed, metavar="N", help=seed_help)
    add("--force", action="store_true", help="replace a draft of that name")
    return parser


def _profile(name: str) -> Profile:
    if name != "auto":
        return load_profile(name)
    from cluster.profiles.auto import name_of_auto  # imports Ray

    name, reason = name_of_auto()
    _print_line(f"profile {name}: {reason}")
    return load_profile(name)


def _seed(folder: Path, options: argparse.Namespace, env: Mapping[str, str]) -> int:
    profile = _profile(options.profile)
    chosen, skipped = select(profile.models, large=options.large, only=options.only)
    seeder = Seeder(folder, HubAccess.of(env), _print_line)
    failed = []
    for key in chosen:  # seed the others if one fails: tiers can start on what is there
        try:
            source = profile.models[key]
            seeder.seed(key, source, again=options.update and seeder.has_moved(key, source))
        except WeightsError as error:
            _print_error(error)
            failed.append(key)
    for key in skipped:
        planned = format_size(round(profile.models[key].size_gb * 1e9))
        _print_line(f"{key}: skipped, large ({planned}): add --large to seed it")
    return 1 if failed else 0


def _list(folder: Path, options: argparse.Namespace, env: Mapping[str, str]) -> int:
    profile = _profile(options.profile)
    chosen = set().union(*select(profile.models, large=True, only=options.only))
    _print_line(f"models folder: {folder}\n")
    _print_line(table(row for row in inventory(profile, folder) if row.model in chosen))
    return 0


def _verify(folder: Path, options: argparse.Namespace, env: Mapping[str, str]) -> int:
    profile = _profile(options.profile)
    chosen, large = select(profile.models, large=options.large, only=options.only)
    chosen += [key for key in large if state_of(folder, key) is not State.MISSING]
    problems = 0
    for key in chosen:
        problem = verify(folder, key)
        if problem is None:
            _print_line(f"{key}: as seeded")
        else:
            _print_error(problem)
            problems += 1
    return 1 if problems else 0


def _early_exit(folder: Path, options: argparse.Namespace, env: Mapping[str, str]) -> int:
    target = options.model or _bundled_model(_profile(options.profile))
    if not model_path(folder, target).is_dir():
        complete = sorted(path.name for path in folder.glob("*") if is_complete(path))
        raise WeightsError(f"no model {target!r} in {folder}: it has {', '.join(complete) or 'none'}")
    name = options.name or f"{target}-early-exit-{options.layers}"
    _check_name(model_path(folder, name), force=options.force)
    source = ModelSource(source="early_exit", of=target, layers=options.layers)
    calibration = Calibration(tokens=options.tokens, seed=options.seed)
    Seeder(folder, HubAccess.of(env), _print_line, calibration).seed(name, source, again=options.force)
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


def _at_least(lowest: int) -> Callable[[str], int]:
    def whole_number(text: str) -> int:
        number = int(text)
        if number < lowest:
            raise argparse.ArgumentTypeError(f"got {number}, must be at least {lowest}")
        return number

    return whole_number
