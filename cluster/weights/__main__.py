"""`python -m cluster.weights seed|list|verify --profile local|gpu|PATH`: the models that a profile names."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cluster.profiles import load_profile
from cluster.weights.errors import WeightsError
from cluster.weights.folder import State, models_dir, state_of
from cluster.weights.hub import HubAccess
from cluster.weights.inventory import inventory, table
from cluster.weights.seeding import Seeder, select
from cluster.weights.space import FreeSpace, format_size, free_bytes
from cluster.weights.verifying import problem_of
from router.errors import ConfigError
from router.registry import Profile


def main(argv: Sequence[str], env: Mapping[str, str], free: FreeSpace = free_bytes) -> int:
    """Run the command line; returns the exit code: 0 done, 1 something is wrong (said in one line), 130 Ctrl-C."""
    options = _parser().parse_args(argv)
    commands: dict[str, Callable[[Profile, Path], int]] = {
        "seed": lambda profile, folder: _seed(profile, folder, options, env, free),
        "list": lambda profile, folder: _list(profile, folder, options),
        "verify": lambda profile, folder: _verify(profile, folder, options),
    }
    try:
        profile = load_profile(options.profile)
        folder = Path(options.models_dir).expanduser().absolute() if options.models_dir else models_dir(env)
        return commands[options.command](profile, folder)
    except (ConfigError, WeightsError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; run it again and it continues", file=sys.stderr)
        return 130


def _seed(profile: Profile, folder: Path, options: argparse.Namespace, env: Mapping[str, str], free: FreeSpace) -> int:
    chosen, skipped = select(profile.models, large=options.large, only=options.only)
    seeder = Seeder(folder, HubAccess.of(env), _say, free)
    failed = []
    for key in chosen:  # one that fails does not keep the others away: tiers can start on what is there
        try:
            seeder.seed(key, profile.models[key])
        except WeightsError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            failed.append(key)
    for key in skipped:
        planned = format_size(round(profile.models[key].size_gb * 1e9))
        _say(f"{key}: skipped, large ({planned}): add --large to fetch it")
    return 1 if failed else 0


def _list(profile: Profile, folder: Path, options: argparse.Namespace) -> int:
    chosen = set().union(*select(profile.models, large=True, only=options.only))
    print(f"models folder: {folder}\n")
    print(table(row for row in inventory(profile, folder) if row.model in chosen))
    return 0


def _verify(profile: Profile, folder: Path, options: argparse.Namespace) -> int:
    chosen, large = select(profile.models, large=options.large, only=options.only)
    chosen += [key for key in large if state_of(folder, key) is not State.MISSING]
    problems = 0
    for key in chosen:
        problem = problem_of(folder, key)
        _say(f"{key}: as seeded") if problem is None else print(f"error: {problem}", file=sys.stderr)
        problems += problem is not None
    return 1 if problems else 0


def _say(line: str) -> None:
    print(line, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cluster.weights", description=__doc__)
    parser.add_argument(
        "command", choices=("seed", "list", "verify"), help="fetch or make what is missing; show; read all files again"
    )
    parser.add_argument("--profile", required=True, help="local, gpu, or the path of a profile's YAML file")
    parser.add_argument("--models-dir", help="default: MODELS_DIR, else `models` in the repository")
    parser.add_argument("--large", action="store_true", help="include models that the profile marks as large")
    parser.add_argument(
        "--only", metavar="MODEL", help="only this model of the profile (large ones still need --large)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
