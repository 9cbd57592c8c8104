"""`python -m cluster.weights.early_exit early-exit --layers N`: makes a draft model out of its target."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cluster.profiles import load_profile
from cluster.weights.early_exit.report import Calibration
from cluster.weights.errors import WeightsError
from cluster.weights.folder import is_complete, model_path, models_dir
from cluster.weights.hub import HubAccess
from cluster.weights.manifest import read_manifest
from cluster.weights.seeding import Seeder
from cluster.weights.space import FreeSpace, free_bytes
from router.errors import ConfigError
from router.registry import ModelSource, Profile

_DEFAULT = Calibration()


def main(argv: Sequence[str], env: Mapping[str, str], free: FreeSpace = free_bytes) -> int:
    """Run the command line; returns the exit code: 0 done, 1 something is wrong (said in one line), 130 Ctrl-C."""
    options = _parser().parse_args(argv)
    try:
        _early_exit(options, env, free)
    except (ConfigError, WeightsError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; run it again\n")
        return 130
    return 0


def _early_exit(options: argparse.Namespace, env: Mapping[str, str], free: FreeSpace) -> None:
    folder = Path(options.models_dir).expanduser().absolute() if options.models_dir else models_dir(env)
    of = options.model or _bundled_target(load_profile(options.profile))
    if not model_path(folder, of).is_dir():
        raise WeightsError(f"no model {of!r} in {folder}: it has {', '.join(_models(folder)) or 'none'}")
    name = options.name or f"{of}-early-exit-{options.layers}"
    _check_name(model_path(folder, name), force=options.force)
    source = ModelSource(source="early_exit", of=of, layers=options.layers)
    calibration = Calibration(tokens=options.tokens, seed=options.seed)
    Seeder(folder, HubAccess.of(env), _say, free, calibration).seed(name, source, again=options.force)


def _bundled_target(profile: Profile) -> str:
    bundled = [key for key, source in profile.models.items() if source.source == "bundled"]
    if len(bundled) != 1:
        raise WeightsError(f"which model? The profile has {', '.join(profile.models)}: name one with --model")
    return bundled[0]


def _check_name(path: Path, *, force: bool) -> None:
    """Refuse to replace a model: a draft only where that is not forced, any other always."""
    there = read_manifest(path)
    if there is not None and there.source != "early_exit":
        raise WeightsError(f"{path} is no draft, and is not replaced by one: give another --name")
    if is_complete(path) and not force:
        raise WeightsError(f"{path} is there already: --force makes it again, --name gives another name")


def _models(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*") if is_complete(path))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cluster.weights.early_exit", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="early-exit")
    early_exit = commands.add_parser(
        "early-exit",
        help="the target's first layers, with an output layer fitted on the target's own answers",
        description="Makes a draft of the target's first layers, with an output layer fitted on its own answers.",
    )
    add = early_exit.add_argument
    add("--layers", required=True, type=_at_least(1), metavar="N", help="how many of the target's layers it has")
    add("--model", metavar="NAME", help="the target, in the models folder; default: the profile's bundled model")
    add("--name", help="the draft's name in the models folder; default: MODEL-early-exit-N")
    add("--profile", default="local", help="local, gpu, or the path of a profile's YAML file (default: %(default)s)")
    add("--models-dir", help="default: MODELS_DIR, else `models` in the repository")
    add(
        "--tokens",
        type=_at_least(1),
        default=_DEFAULT.tokens,
        metavar="N",
        help="how many tokens the target writes (default: %(default)s)",
    )
    add(
        "--seed",
        type=_at_least(0),
        default=_DEFAULT.seed,
        metavar="N",
        help="the same seed makes the same draft (default: %(default)s)",
    )
    add("--force", action="store_true", help="make it again where there is one of that name")
    return parser


def _at_least(lowest: int) -> Callable[[str], int]:
    def whole_number(text: str) -> int:
        number = int(text)
        if number < lowest:
            raise argparse.ArgumentTypeError(f"got {number}, must be at least {lowest}")
        return number

    return whole_number


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
