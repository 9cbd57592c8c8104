"""Measure how well auto mode orders prompts: the share of a strong model's gain that this order recovers.

The figure is APGR (`router.calibration.apgr`): 0.5 is a guess. Every prompt is scored by a model that saw neither it
nor another wording of it, and whose one setting was chosen without it (nested cross-validation); and again by a model
that saw no prompt of its source. In a mix the sources weigh the same. Structure and constants of the model were chosen
by cross-validation on the same outcomes, so expect a little less on others. RouterArena's outcomes are in no training:
the shipped model is scored on them. With `--data FILE`, it is scored on that file, untrained.

    python -m bench.routing --json bench/results/routing.json --plot bench/results/routing.svg
    python -m bench.routing --data outcomes.jsonl --json FILE
"""

from __future__ import annotations

import gc
import random
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import yaml

from bench.quality.sources import (
    ANCHOR_SOURCE,
    ENGLISH_USERS,
    ROUTER_ARENA_SOURCE,
    SAME_OUTCOMES,
    USERS,
    read_anchors,
    read_router_arena,
    read_sources,
)
from bench.reporting.options import parser
from bench.reporting.plot import curves
from bench.reporting.report import REPOSITORY, Value, print_report, provenance, write_json
from bench.reporting.stats import percentile
from bench.train_router import MODEL, embedded, training_samples
from router.calibration.apgr import Curve, apgr, gain_curve
from router.calibration.fit import Samples, cross_validated, fit, quality
from router.calibration.outcomes import Outcome, read_outcomes
from router.difficulty.classify import Classification, classify_prompt
from router.difficulty.pieces import Floats
from router.observation import Observation
from router.plan import plan
from router.registry import DEFAULT_AUTO, TIER_NAMES, Profile
from router.request import InferenceRequest

FOLDS: Final = 5
REPETITIONS: Final = 5
"""Repetitions of the cross-validation, each with other folds."""
RESAMPLES: Final = 200
"""Resamples of the prompts, for the standard error."""
LATENCY_PASSES: Final = 3
"""How often each prompt is planned."""
BINS: Final = 10
"""Of the calibration, with the same share of the mix in each."""
UNSAFE_KIND: Final = "contrast"
"""XSTest's kinds of unsafe prompts have this in their names."""


UNREAD_QUARTER: Final = 3
"""By a hash of the prompt's id."""


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


def latency_figures(prompts: Sequence[str], profile: Profile, passes: int) -> dict[str, float]:
    """Return the latency of `plan()` in ms, for prompts as they are."""
    latencies_ms(prompts[:50], profile, 1)  # the first calls of a process are slower
    gc.collect()
    gc.freeze()  # as the ingress does
    taken = latencies_ms(prompts, profile, passes)
    return {
        "latency_p50_ms": percentile(taken.wall, 50),
        "latency_p99_ms": percentile(taken.wall, 99),
        "cpu_p50_ms": percentile(taken.cpu, 50),
        "cpu_p99_ms": percentile(taken.cpu, 99),
    }


def mixes(samples: Samples) -> dict[str, tuple[str, ...]]:
    """Return the mixes that are reported, each with its sources."""
    return {"mix_all": measured(samples), "mix_users": USERS, "mix_english_users": ENGLISH_USERS}


def measured(samples: Samples) -> tuple[str, ...]:
    """Return the sources of outcomes that were measured: all but the anchors."""
    return tuple(sorted({str(s) for s in samples.sources if not s.startswith(ANCHOR_SOURCE)}))


def chosen(samples: Samples, sources: Sequence[str]) -> Any:
    """Return the indices of the samples of these sources."""
    return np.flatnonzero(np.isin(samples.sources, sources))


def figures_of(scores: Floats, samples: Samples) -> dict[str, Any]:
    """Return the APGR of each mix and of each file, and the mean within files."""
    found: dict[str, Any] = {}
    for name, sources in mixes(samples).items():
        part = chosen(samples, sources)
        found[name] = quality(scores[part], samples.part(part))
    per_file = {
        source: quality(scores[part := chosen(samples, [source])], samples.part(part))
        for source in mixes(samples)["mix_all"]
    }
    return found | {"within_files": sum(per_file.values()) / len(per_file), "files": per_file}


def mean_of(repeated: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean of figures, also of those inside of a mapping."""
    return {
        key: mean_of([one[key] for one in repeated])
        if isinstance(value, Mapping)
        else sum(one[key] for one in repeated) / len(repeated)
        for key, value in repeated[0].items()
    }


def left_out_sources(samples: Samples) -> Floats:
    """Return the expected gain of each sample, by a model that saw no prompt of its source."""
    gains = np.zeros(len(samples), np.float32)
    for source in measured(samples):
        unseen = SAME_OUTCOMES if source in SAME_OUTCOMES else (source,)
        seen = np.flatnonzero(~np.isin(samples.sources, unseen))
        here = chosen(samples, [source])
        gains[here] = fit(samples.part(seen)).gains(samples.part(here))
    return gains


def standard_errors(scores: Floats, samples: Samples, resamples: int) -> dict[str, float]:
    """Return the standard deviation of each mix's APGR over resamples of its prompts, source by source."""
    rng = np.random.default_rng(0)
    errors = {}
    for name, sources in mixes(samples).items():
        places = [chosen(samples, [source]) for source in sources]
        areas = []
        for _ in range(resamples):
            drawn = np.concatenate([rng.choice(place, len(place)) for place in places])
            areas.append(quality(scores[drawn], samples.part(drawn)))
        errors[name] = float(np.std(areas))
    return errors


def calibration(scores: Floats, samples: Samples) -> list[dict[str, float]]:
    """Return expected and seen gain in bins of the mix of all, from the least expected gain to the most."""
    part = chosen(samples, mixes(samples)["mix_all"])
    part = part[np.argsort(scores[part])]
    weights, gains = samples.part(part).weights(), samples.gains[part]
    bins = np.minimum((np.cumsum(weights) - weights / 2) * BINS, BINS - 1).astype(int)
    return [
        {
            "expected": float(np.average(scores[part][bins == one], weights=weights[bins == one])),
            "seen": float(np.average(gains[bins == one], weights=weights[bins == one])),
        }
        for one in range(BINS)
    ]


def tier_shares(outcomes: Sequence[Outcome], profile: Profile) -> dict[str, dict[str, float]]:
    """Return for each source the share of its prompts that each tier gets, by the shipped model."""
    shares: dict[str, dict[str, float]] = {}
    for source in sorted({outcome.source for outcome in outcomes}):
        prompts = [outcome.prompt for outcome in outcomes if outcome.source == source]
        tiers = [plan(InferenceRequest(prompt=prompt), Observation(), profile).tier for prompt in prompts]
        shares[source] = {tier: tiers.count(tier) / len(tiers) for tier in TIER_NAMES}
    return shares


def hard_prompts_to_eco(scores: Floats, samples: Samples) -> dict[str, float]:
    """Return the share of Chatbot Arena's hard prompts that go to eco, in each language.

    The scores are cross-validated; eco gets its share of the mix of all.
    """
    part = chosen(samples, mixes(samples)["mix_all"])
    part = part[np.argsort(scores[part])]
    highest = scores[part][np.searchsorted(np.cumsum(samples.part(part).weights()), DEFAULT_AUTO.shares[0] / 100)]
    return {source: float((scores[chosen(samples, [source])] < highest).mean()) for source in SAME_OUTCOMES}


def safety_figures(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return how XSTest's prompts are rated: misses and false alarms.

    `unread_` prompts are those that nobody read to write the rules.
    """
    found: dict[str, float] = {}
    for name, unsafe in (("unsafe", True), ("safe", False)):
        these = [outcome for outcome in outcomes if (UNSAFE_KIND in outcome.kind) == unsafe]
        rated = [classify_prompt(outcome.prompt) for outcome in these]
        found[f"{name}_prompts"] = len(rated)
        found[f"{name}_safety_critical"] = _critical(rated)
        found[f"{name}_performance_or_more"] = sum(one.difficulty >= 6 for one in rated) / len(rated)
        found[f"{name}_mean_score"] = sum(one.score for one in rated) / len(rated)
        unread = [one for one, outcome in zip(rated, these, strict=True) if is_unread(outcome)]
        found[f"unread_{name}_prompts"] = len(unread)
        if unread:
            found[f"unread_{name}_safety_critical"] = _critical(unread)
    return found


def is_unread(outcome: Outcome) -> bool:
    """Return whether a prompt of XSTest is in the quarter that was left unread when the rules were written."""
    return zlib.crc32(outcome.id.encode()) % 4 == UNREAD_QUARTER


def _critical(rated: Sequence[Classification]) -> float:
    return sum(one.category == "safety_critical" for one in rated) / len(rated)


def baselines(samples: Samples, outcomes: Sequence[Outcome]) -> dict[str, Curve]:
    """Return the curves over the mix of all, of a guess and of the prompt's length."""
    part = chosen(samples, mixes(samples)["mix_all"])
    gains, weights = samples.gains[part].tolist(), samples.part(part).weights().tolist()
    return {
        "random": gain_curve([0.0] * len(part), gains, weights),
        "prompt length": gain_curve([len(outcomes[index].prompt) for index in part], gains, weights),
    }


def rows_of(figures: Mapping[str, Any], before: str = "") -> list[dict[str, Value]]:
    """Return nested figures as rows of a table."""
    rows: list[dict[str, Value]] = []
    for key, value in figures.items():
        if isinstance(value, Mapping):
            rows += rows_of(value, f"{before}{key} ")
        elif isinstance(value, int | float):
            rows.append({"figure": f"{before}{key}", "value": value})
    return rows


def score_shipped(outcomes: Sequence[Outcome], profile: Profile) -> dict[str, Any]:
    """Return the figures of the shipped model on outcomes that it may not have seen."""
    scores = np.array([classify_prompt(outcome.prompt).score for outcome in outcomes], np.float32)
    by_source = {}
    for source in sorted({outcome.source for outcome in outcomes}):
        here = [index for index, outcome in enumerate(outcomes) if outcome.source == source]
        gains = [outcomes[index].gain for index in here]
        by_source[source] = gain_area(scores[here].tolist(), gains)
    return {"apgr": by_source, "tier_shares": tier_shares(outcomes, profile)}


def gain_area(scores: Sequence[float], gains: Sequence[float]) -> float | None:
    """Return the APGR; None: the strong model gains nothing."""
    return apgr(scores, gains) if sum(gains) > 0 else None


def main() -> None:
    """Measure and print; write JSON and the plot if requested."""
    options = parser("bench.routing", __doc__, "one repetition, fewer resamples and calls, no source left out")
    options.add_argument("--data", type=Path, metavar="FILE", help="score the shipped model on this file, untrained")
    options.add_argument("--plot", type=Path, metavar="FILE", help="draw the curves here (SVG)")
    args = options.parse_args()
    made_by = provenance()
    repetitions, resamples, passes = (1, 20, 1) if args.quick else (REPETITIONS, RESAMPLES, LATENCY_PASSES)
    profile = Profile.model_validate(
        yaml.safe_load((REPOSITORY / "cluster" / "profiles" / "gpu.yaml").read_text(encoding="utf-8"))
    )
    if args.data:
        shipped = score_shipped(read_outcomes(args.data), profile)
        print_report("Quality of AUTO", rows_of(shipped), made_by)
        if args.json:
            write_json(args.json, shipped, made_by)
        return

    outcomes = read_sources()
    latency = latency_figures(random.Random(0).sample([outcome.prompt for outcome in outcomes], 1500), profile, passes)
    samples, _ = training_samples(outcomes + read_anchors(), embedded(MODEL))
    repeated = [cross_validated(samples, FOLDS, seed) for seed in range(repetitions)]
    figures: dict[str, Any] = {
        "prompts": len(outcomes),
        "repetitions": repetitions,
        "apgr": mean_of([figures_of(scores, samples) for scores in repeated]),
        "apgr_standard_error": standard_errors(repeated[0], samples, resamples),
    }
    if not args.quick:
        figures["apgr_source_left_out"] = figures_of(left_out_sources(samples), samples)
    part = chosen(samples, mixes(samples)["mix_all"])
    mix = samples.part(part)
    curve = gain_curve(repeated[0][part].tolist(), mix.gains.tolist(), mix.weights().tolist())
    arena = read_router_arena()
    figures |= {
        "calibration": calibration(repeated[0], samples),
        "apgr_routerarena_unseen": score_shipped(arena, profile)["apgr"][ROUTER_ARENA_SOURCE],
        "tier_shares": tier_shares(outcomes + arena, profile),
        "hard_prompts_to_eco": hard_prompts_to_eco(repeated[0], samples),
        "safety": safety_figures([outcome for outcome in outcomes if outcome.source == "xstest"]),
        **latency,
    }
    print_report("Quality of AUTO", rows_of(figures), made_by)
    if args.json:
        write_json(args.json, figures, made_by)
    if args.plot:
        curves(
            args.plot,
            "Share of the strong model's gain recovered, mix of all sources",
            {"router, cross-validated": curve, **baselines(samples, outcomes)},
            strong=1,
            x_label="share of prompts sent to the strong model",
            y_label="share of its gain recovered",
        )


if __name__ == "__main__":
    main()
