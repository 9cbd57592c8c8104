"""Measure a profile on this machine's GPUs: does each entry start, answer the same, and speculate at a profit?

    python -m bench.gpu --profile FILE --minutes 10 [--engines-only] [--json FILE] [--entries eco/ngram ...]

Each entry's engine runs in processes of its own, with the arguments that a replica gives it (bench/engine/engines.py):
first the entry without speculation, then as it is. All engines are started with empty compile caches, for answers and
one request at a time, before any is started again with warm ones, for more requests at a time and the rest. On both:
time from the start of the processes to the first token; greedy answers at K=0, 1, k_max and mixed against those without
speculation; at 1, 8 and 32 requests at a time (or as many as an engine takes), for off, each K, mixed K and auto:
tokens/s, times to first token and between tokens, and the median time of an engine step with that many drafts;
the cards' energy by their counters, beside that by the tier's watts; acceptance by category; GSM8K for a quantised
model whose unquantised one is in the models folder (its name begins the other's) and fits. Prompts are never in a
prefix cache.

Where a target's weights are not in the models folder they are made up (`load_format: dummy`), in the shape of its
`config.json` there, or else of the catalogue, and the table says so: speeds are right, and nothing is said about
acceptance. An entry whose engine fails is in the table with its reason, and the others go on. The JSON has everything;
the table (.md) and the engines' logs are beside it. The same command goes on where the last one ended, and begins
nothing that is not expected to end within the minutes.

Without `--engines-only` each tier is also woken through the application, which needs Ray. With it nothing imports Ray,
so that vLLM and this project are enough.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import shutil
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from bench.engine.engines import EngineProcess, engine_process
from bench.engine.prompts import COPYING, PromptError, builtin_families, copying_prompts, read_families
from bench.kit.card import Cards, read_cards
from bench.kit.folder import folder_of, models_in
from bench.kit.gsm8k import read_problems
from bench.kit.measure import Measurer
from bench.kit.plan import Engine, engines_of
from bench.kit.results import OtherRunError, Results
from bench.kit.run import Run, Start
from bench.kit.table import table
from bench.reporting.options import parser
from bench.reporting.report import REPOSITORY, provenance
from cluster.profiles.reading import load_profile
from cluster.weights import models_dir
from router.errors import ConfigError
from router.registry import Profile

DATA: Final = REPOSITORY.parent / "shared" / "data"
PROBLEMS: Final = 64
WAKE_S: Final = 300.0
"""Longest expected time to start the application and wake a tier, s."""
STOP_S: Final = 30.0
"""Time for the application to stop, s."""


def read_prompts(folder: Path) -> Mapping[str, Sequence[str]]:
    """Return the prompts in a folder by category, or a few of our own if it has none, and JSON to copy."""
    try:
        families: Mapping[str, Sequence[str]] = read_families(folder)
    except PromptError:
        families = builtin_families()
    return {**families, COPYING: copying_prompts(16)}


def starter(folder: Path, stand_ins: Path, caches: Path, logs: Path, *, measures_energy: bool) -> Start:
    """Return a function that starts engines.

    Args:
        folder: the models folder.
        stand_ins: folder of models of which there is only a config.
        caches: folder for what vLLM and Triton compile, one for each engine.
        logs: folder for the engines' output.
        measures_energy: whether there is a card whose counter can be read.
    """

    def start(engine: Engine, empty: bool) -> AbstractContextManager[EngineProcess]:
        names = [engine.entry.target]
        if engine.entry.speculation is not None and engine.entry.speculation.draft is not None:
            names.append(engine.entry.speculation.draft)
        cache = caches / engine.key.replace(" ", "-")
        if empty:
            shutil.rmtree(cache, ignore_errors=True)
        environment = {"VLLM_CACHE_ROOT": str(cache), "TRITON_CACHE_DIR": str(cache / "triton")}
        paths = {name: folder_of(folder, name, stand_ins) for name in names}
        log = logs / f"{engine.key.replace(' ', '-')}.log"
        return engine_process(
            engine.entry, engine.tier, paths, log, environment=environment, measures_energy=measures_energy
        )

    return start


def references(engines: Sequence[Engine]) -> dict[str, Engine]:
    """Return for each engine the one of the same entry without speculation."""
    plain = {engine.label: engine for engine in engines if engine.role == "off"}
    same = {_without_speculation(engine): engine for engine in engines if engine.role == "off"}
    return {engine.key: plain.get(engine.label) or same[_without_speculation(engine)] for engine in engines}


def _without_speculation(engine: Engine) -> str:
    entry = engine.entry.model_copy(update={"speculation": None, "name": "plain", "runner": None})
    return f"{entry.model_dump_json()} {engine.tier.gpus}"


def wake_tiers(results: Results, profile: Profile, profile_name: str, folder: Path, deadline_s: float) -> None:
    """Start the application and send each tier its first request; keep how long each took."""
    from bench.cold_start import POWERS, wake  # only here: `--engines-only` must not import what needs Ray
    from bench.load.servers import application, running

    missing = [tier for tier in profile.tiers if tier not in results.application]
    if not missing or time.monotonic() + WAKE_S > deadline_s:
        return
    arguments = {
        "profile": profile_name,
        "models_dir": str(folder),
        "tiers": {tier: {"replicas": {"min": 0, "max": 1}} for tier in profile.tiers},
    }
    app = application({"/": arguments}, ready="/healthz")
    with running(app, timeout_s=120):
        for tier in missing:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return
            try:
                first_token_s: float | None = asyncio.run(wake(app.port, POWERS[tier], timeout_s=left_s)).first_token_s
                reason = None
            except RuntimeError as error:
                first_token_s, reason = None, str(error)[:300]
            results.application[tier] = {"first_token_s": first_token_s, "reason": reason}
            results.write()


def minutes(text: str) -> float:
    """Return the value of `--minutes`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"got {text!r}, must be a positive number")
    return value


def check_entries(wanted: Collection[str], profile: Profile, first_tier_only: bool) -> None:
    """Check that there are the wanted entries.

    Raises:
        ConfigError: there is none of such a name.
    """
    tiers = list(profile.tiers.items())[: 1 if first_tier_only else None]
    names = [f"{name}/{entry.name}" for name, tier in tiers for entry in tier.chain]
    if unknown := sorted(set(wanted) - set(names)):
        got = ", ".join(map(repr, unknown))
        raise ConfigError(f"--entries: got {got}, allowed are {', '.join(names)}")


def named(name: str, profile: Profile) -> str:
    """Return how the results call a profile: by its file's name in any folder, and by its description."""
    return f"{Path(name).name if name.endswith(('.yaml', '.yml')) else name}: {profile.description}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the kit; return 2 if the profile or the results cannot be used, 130 after Ctrl-C."""
    options = parser("bench.gpu", __doc__, "the first tier only")
    options.add_argument("--profile", required=True, metavar="FILE", help="local, gpu, or a profile's YAML file")
    options.add_argument(
        "--minutes", type=minutes, default=10.0, metavar="N", help="when to end (default: %(default)s)"
    )
    options.add_argument("--engines-only", action="store_true", help="without the application: imports no Ray")
    options.add_argument("--retry", action="store_true", help="try engines again that failed in an earlier run")
    options.add_argument("--entries", nargs="+", metavar="TIER/ENTRY", help="only these entries")
    options.add_argument("--prompts", type=Path, default=DATA, metavar="DIR", help="folder of *.jsonl files")
    args = options.parse_args(argv)
    deadline_s = time.monotonic() + 60 * args.minutes
    made_by = provenance()
    cards: Cards = read_cards()
    path: Path = (args.json or Path("power-lever-card.json")).absolute()
    wanted = set(args.entries or ())
    try:
        profile = load_profile(args.profile)
        check_entries(wanted, profile, first_tier_only=args.quick)
        if not args.engines_only and find_spec("ray") is None:
            raise ConfigError(
                "Ray is not installed here, which waking tiers through the application needs: give --engines-only"
            )
        results = Results.read(path, cards.machine(made_by), made_by, named(args.profile, profile))
        results.check_writable()
    except (ConfigError, OtherRunError) as error:
        print(error, file=sys.stderr)
        return 2
    if args.retry:
        results.forget_failures()
    folder = models_dir(os.environ)
    stand_ins = path.with_name(f"{path.stem}-stand-ins")
    models = models_in(folder, profile, cards.count * cards.memory_gib, stand_ins)
    problems = read_problems(args.prompts / "gsm8k.jsonl", PROBLEMS)
    if not problems:
        models = replace(models, unquantised={})
    first = next(iter(profile.tiers))
    engines = engines_of(
        profile,
        models,
        cards.count,
        lambda label: (label in wanted if wanted else True) and (label.startswith(f"{first}/") or not args.quick),
    )
    caches = path.with_name(f"{path.stem}-caches")
    measure = Measurer(read_prompts(args.prompts), problems, results, references(engines))
    logs = path.with_name(f"{path.stem}-logs")
    logs.mkdir(exist_ok=True)
    start = starter(folder, stand_ins, caches, logs, measures_energy=cards.count > 0)
    run = Run(results, start, measure, time.monotonic, deadline_s, _print_line, measure.hopeless)
    try:
        left = run.engines(engines)
    except KeyboardInterrupt:
        write_table(results, run.left(engines))
        _print_line(f"interrupted: {path.with_suffix('.md')} has what was measured, and the same command goes on")
        return 130
    write_table(results, left)
    if not args.engines_only:
        wake_tiers(results, profile, args.profile, folder, deadline_s - STOP_S)
        write_table(results, left)
    print(table(results, left))
    return 0


def write_table(results: Results, left: int) -> None:
    """Write the JSON and the table beside it."""
    results.write()
    results.path.with_suffix(".md").write_text(table(results, left), encoding="utf-8")


def _print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
