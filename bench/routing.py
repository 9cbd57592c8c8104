"""Measure how well auto mode orders prompts: the share of a strong model's gain that this order recovers.

Without `--data`, the router is trained and scored on the same outcomes by cross-validation. The model that scores a
prompt never saw it, nor a prompt that repeats its words, and its one setting was chosen without it (nested). Prompts
are scored as given and bare of their benchmark's template, and again by models that saw no prompt of the same
benchmark. With `--data FILE`, the shipped router is scored on that file, untrained.

The score is APGR (`bench.quality.apgr`): 0.5 is a guess. The report also has the latency of `plan()` and the scores of
the safety-critical prompts.

    python -m bench.routing --json bench/results/routing.json --plot bench/results/routing.svg
    python -m bench.routing --data outcomes.jsonl --json FILE
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from bench.quality.apgr import Curve, apgr, area, gain_curve, recovered_at
from bench.quality.outcomes import OUTCOMES, Outcome, folds, groups, read_outcomes
from bench.reporting.options import parser
from bench.reporting.plot import curves
from bench.reporting.report import REPOSITORY, Value, print_report, provenance, write_json
from bench.reporting.stats import percentile
from bench.train_router import Task, train
from router.difficulty.classify import Ruling, shifted
from router.difficulty.gain_model import GainModel, load_gain_model
from router.observation import Observation
from router.plan import plan
from router.registry import Profile
from router.request import InferenceRequest

FOLDS: Final = 10
REPETITIONS: Final = 10
"""Repetitions of the cross-validation, each with other folds."""
RESAMPLES: Final = 1000
"""Resamples of the prompts, for the standard error."""
LATENCY_PASSES: Final = 10
"""How often each prompt is planned."""
LONG_CHARS: Final = 8000
SHARES: Final = (0.1, 0.25, 0.5, 0.75)
"""Shares sent to the strong model at which the recovered gain is reported."""


@dataclass(frozen=True, slots=True)
class Crossed:
    """Scores of prompts by models that did not see them."""

    given: list[float]
    """As the benchmark gives them."""
    bare: list[float]
    """Bare of its template."""


def cross_validate(tasks: Sequence[Task], keys: Sequence[object], count: int, seed: int) -> Crossed:
    """Score every task by a model trained on the others; tasks of one key are left out together.

    Args:
        tasks: to score.
        keys: one for each task.
        count: number of folds, at most one for each key.
        seed: of the folds.
    """
    crossed = Crossed([0.0] * len(tasks), [0.0] * len(tasks))
    order = list(range(len(tasks)))
    random.Random(seed).shuffle(order)
    for left_out in folds(keys, count, order):
        unseen = set(left_out)
        seen = [index for index in range(len(tasks)) if index not in unseen]
        model, _ = train([tasks[index] for index in seen], [keys[index] for index in seen], seed)
        for index in left_out:
            crossed.given[index] = score_of(tasks[index].given, model)
            crossed.bare[index] = score_of(tasks[index].bare, model)
    return crossed


def score_of(ruling: Ruling, model: GainModel) -> float:
    """Return the score by which auto mode orders the prompt."""
    return shifted(ruling, model).score


def standard_error(scores: Sequence[float], gains: Sequence[float], resamples: int, seed: int = 0) -> float:
    """Return the standard deviation of the APGR over resamples of the prompts, with replacement."""
    rng = random.Random(seed)
    areas: list[float] = []
    while len(areas) < resamples:
        chosen = rng.choices(range(len(gains)), k=len(gains))
        if sum(gains[index] for index in chosen) > 0:
            areas.append(apgr([scores[index] for index in chosen], [gains[index] for index in chosen]))
    mean = sum(areas) / len(areas)
    return math.sqrt(sum((value - mean) ** 2 for value in areas) / len(areas))


def mean_curve(repeated: Sequence[Sequence[float]], gains: Sequence[float]) -> Curve:
    """Return the curve of several repetitions, averaged at every percent of prompts sent."""
    each = [gain_curve(scores, gains) for scores in repeated]
    grid = [percent / 100 for percent in range(101)]
    return tuple((share, sum(recovered_at(curve, share) for curve in each) / len(each)) for share in grid)


class Durations(NamedTuple):
    """Durations of calls of `plan()`, ms."""

    wall: list[float]
    """By the clock: other processes of the machine count."""
    cpu: list[float]
    """By this thread's CPU time."""


def latencies_ms(prompts: Iterable[str], profile: Profile, passes: int) -> Durations:
    """Time `plan()` for each prompt, `passes` times, one call at a time."""
    requests = [InferenceRequest(prompt=prompt) for prompt in prompts]
    observation = Observation()
    durations = Durations([], [])
    for _ in range(passes):
        for request in requests:
            cpu, wall = time.thread_time(), time.perf_counter()
            plan(request, observation, profile)
            durations.wall.append((time.perf_counter() - wall) * 1000)
            durations.cpu.append((time.thread_time() - cpu) * 1000)
    return durations


def long_prompts(prompts: Sequence[str], chars: int = LONG_CHARS) -> list[str]:
    """Return the prompts, each repeated and cut to so many characters: the most that is scanned."""
    return [(prompt * (chars // len(prompt) + 1))[:chars] for prompt in prompts if prompt]


def safety_figures(rulings: Sequence[Ruling], scores: Sequence[float]) -> dict[str, Value]:
    """Return the scores of safety-critical prompts, compared with those of the rules alone."""
    critical = [
        (ruling, score) for ruling, score in zip(rulings, scores, strict=True) if ruling.category == "safety_critical"
    ]
    return {
        "prompts": len(critical),
        "lowest_score": min((score for _, score in critical), default=None),
        "rated_under_the_rules": sum(score < ruling.difficulty for ruling, score in critical),
    }


def baselines(outcomes: Sequence[Outcome], rulings: Sequence[Ruling]) -> dict[str, Curve]:
    """Return the curves of a guess, of the prompt's length, of the rules, and of a router that knows the outcomes."""
    gains = [outcome.gain for outcome in outcomes]
    return {
        "random": gain_curve([0.0] * len(gains), gains),
        "prompt length": gain_curve([len(outcome.prompt) for outcome in outcomes], gains),
        "rules alone": gain_curve([ruling.difficulty for ruling in rulings], gains),
        "knows who gains": gain_curve([float(gain > 0) for gain in gains], gains),
    }


def score_shipped(tasks: Sequence[Task], resamples: int) -> tuple[dict[str, Any], dict[str, Curve]]:
    """Return figures and curves of the shipped router."""
    gains = [task.outcome.gain for task in tasks]
    given = [score_of(task.given, load_gain_model()) for task in tasks]
    curve = gain_curve(given, gains)
    figures = {
        "apgr": area(curve),
        "apgr_standard_error": standard_error(given, gains, resamples),
        "apgr_bare_prompts": apgr([score_of(task.bare, load_gain_model()) for task in tasks], gains),
        "recovered_at": {str(share): recovered_at(curve, share) for share in SHARES},
        "safety_critical": safety_figures([task.given for task in tasks], given),
    }
    return figures, {"router, as shipped": curve}


def score_crossed(tasks: Sequence[Task], repetitions: int, resamples: int) -> tuple[dict[str, Any], dict[str, Curve]]:
    """Return figures and curves of routers that did not see what they are scored on."""
    outcomes = [task.outcome for task in tasks]
    gains = [outcome.gain for outcome in outcomes]
    keys = groups(outcomes)
    repeated = [cross_validate(tasks, keys, FOLDS, seed) for seed in range(repetitions)]
    benchmarks = [outcome.benchmark for outcome in outcomes]
    left_out = cross_validate(tasks, benchmarks, len(set(benchmarks)), 0)
    given = [crossed.given for crossed in repeated]
    areas = [apgr(scores, gains) for scores in given]
    curve = mean_curve(given, gains)
    figures = {
        "apgr": sum(areas) / len(areas),
        "apgr_standard_error": standard_error(given[0], gains, resamples),
        "apgr_lowest_repetition": min(areas),
        "apgr_bare_prompts": sum(apgr(crossed.bare, gains) for crossed in repeated) / len(repeated),
        "apgr_benchmark_left_out": apgr(left_out.given, gains),
        "apgr_benchmark_left_out_bare_prompts": apgr(left_out.bare, gains),
        "benchmarks": len(set(benchmarks)),
        "repetitions": repetitions,
        "recovered_at": {str(share): recovered_at(curve, share) for share in SHARES},
        "safety_critical": safety_figures([task.given for task in tasks], given[0]),
    }
    return figures, {"router, cross-validated": curve, "router, benchmark left out": gain_curve(left_out.given, gains)}


def latency_figures(outcomes: Sequence[Outcome], profile: Profile, passes: int) -> dict[str, float]:
    """Return the latency of `plan()` in ms, for the prompts and for prompts of LONG_CHARS made from them."""
    prompts = [outcome.prompt for outcome in outcomes]
    latencies_ms(prompts[:50], profile, 1)  # the first calls of a process are slower
    taken = latencies_ms(prompts, profile, passes)
    long = latencies_ms(long_prompts(prompts), profile, max(1, passes // 5))
    return {
        "latency_p50_ms": percentile(taken.wall, 50),
        "latency_p99_ms": percentile(taken.wall, 99),
        "cpu_p99_ms": percentile(taken.cpu, 99),
        "latency_8000_chars_p50_ms": percentile(long.wall, 50),
        "latency_8000_chars_p99_ms": percentile(long.wall, 99),
        "cpu_8000_chars_p99_ms": percentile(long.cpu, 99),
    }


def report_rows(figures: Mapping[str, Any], known: Mapping[str, Curve]) -> list[dict[str, Value]]:
    """Return the figures as rows of a table."""
    rows: list[tuple[str, Value]] = [(f"APGR, {name}", area(curve)) for name, curve in known.items()]
    rows += [(key, value) for key, value in figures.items() if isinstance(value, int | float)]
    rows += [(f"recovered at {share} sent", value) for share, value in figures["recovered_at"].items()]
    rows += [(f"safety-critical: {key}", value) for key, value in figures["safety_critical"].items()]
    return [{"figure": name, "value": value} for name, value in rows]


def main() -> None:
    """Measure and print; write JSON and the plot if requested."""
    options = parser("bench.routing", __doc__, "two repetitions instead of ten, fewer resamples and calls")
    options.add_argument("--data", type=Path, metavar="FILE", help="score the shipped router on this file, untrained")
    options.add_argument("--plot", type=Path, metavar="FILE", help="draw the curves here (SVG)")
    args = options.parse_args()
    made_by = provenance()
    repetitions, resamples, passes = (2, 200, 2) if args.quick else (REPETITIONS, RESAMPLES, LATENCY_PASSES)

    outcomes = read_outcomes(args.data or OUTCOMES)
    profile = Profile.model_validate(
        yaml.safe_load((REPOSITORY / "cluster" / "profiles" / "gpu.yaml").read_text(encoding="utf-8"))
    )
    latency = latency_figures(outcomes, profile, passes)
    tasks = [Task.of(outcome) for outcome in outcomes]
    if args.data:
        scored, plotted = score_shipped(tasks, resamples)
    else:
        scored, plotted = score_crossed(tasks, repetitions, resamples)
    known = baselines(outcomes, [task.given for task in tasks])
    figures = {"rows": len(outcomes), **scored, **latency}

    print_report("Quality of AUTO", report_rows(figures, known), made_by)
    if args.json:
        areas = {name: area(curve) for name, curve in known.items()}
        write_json(args.json, {**figures, "baselines": areas}, made_by)
    if args.plot:
        curves(
            args.plot,
            "Share of the strong model's gain recovered",
            {f"{name} ({area(curve):.2f})": curve for name, curve in {**plotted, **known}.items()},
            strong=len(plotted),
            x_label="share of prompts sent to the strong model",
            y_label="share of its gain recovered",
        )


if __name__ == "__main__":
    main()
