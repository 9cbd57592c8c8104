"""Traffic for the autoscaling benchmark, scaled to a tier: made (a day, bursts, steps), or recorded in a file."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import pi
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from bench.scaling.hardware import Floats, Hardware
from bench.scaling.simulation import Trace

PROMPT_TOKENS: Final = 512.0
ANSWER_TOKENS: Final = 400.0
SIGMA: Final = 0.8
"""Lengths of made traffic are log-normal: means, and standard deviation of the logarithm."""
PEAK: Final = 0.8
"""Load of the busiest minute, as a share of the capacity of all replicas."""
SPREAD_S: Final = 2.0
"""The repetitions of a recorded arrival come within this time after it."""
COLUMNS: Final = ("arrival_s", "prompt_tokens", "completion_tokens")

Shape = Callable[[Floats, np.random.Generator], Floats]
"""Share (0-1) of the peak's traffic at each second."""


def diurnal(seconds: Floats, rng: np.random.Generator) -> Floats:
    """A day from night to night: a tenth of the peak at night, with slow noise of 10%."""
    day: Floats = 0.1 + 0.9 * (0.5 - 0.5 * np.cos(2 * pi * seconds / seconds[-1]))
    noise: Floats = 1 + 0.1 * _slow_noise(len(seconds), 120, rng)
    return np.asarray(np.minimum(day * noise, 1.0), dtype=np.float64)


def bursty(seconds: Floats, rng: np.random.Generator) -> Floats:
    """A quarter of the peak, with random bursts: about every ten minutes, for about three minutes, of any height."""
    level = np.full(len(seconds), 0.25)
    start = 0.0
    while True:
        start += rng.exponential(600.0)
        if start >= seconds[-1]:
            return np.asarray(np.minimum(level, 1.0), dtype=np.float64)
        length, height = rng.exponential(180.0), rng.uniform(0.1, 0.75)
        # A burst builds up within half a minute.
        rise = np.clip((seconds - start) / 30.0, 0, 1) * (seconds < start + length)
        level = np.maximum(level, 0.25 + height * rise)


def step(seconds: Floats, rng: np.random.Generator) -> Floats:
    """A quarter of the peak for 20 minutes, three times as much at once for the next 20, and so on."""
    return np.where(seconds % 2400 < 1200, 0.25, 0.75)


SHAPES: Final[Mapping[str, Shape]] = MappingProxyType({"diurnal": diurnal, "bursty": bursty, "step": step})


class TrafficError(ValueError):
    """A file is not recorded traffic. The message says which line, what it has and what is allowed."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Recorded traffic, in the order of arrival; the first request arrives at 0 s."""

    name: str
    arrivals_s: Floats
    prompt_tokens: Floats
    completion_tokens: Floats


def made(name: str, hardware: Hardware, replicas_max: int, duration_s: float, seed: int) -> Trace:
    """Return traffic of one shape for a tier of this size.

    Args:
        name: a key of `SHAPES`.
        hardware: of the replicas; determines the tier's capacity.
        replicas_max: most replicas.
        duration_s: length of the trace.
        seed: of arrivals and lengths.
    """
    rng = np.random.default_rng((seed, replicas_max, sorted(SHAPES).index(name)))
    seconds: Floats = np.arange(0.0, duration_s, dtype=np.float64)
    shape = np.maximum(0.0, SHAPES[name](seconds, rng))
    per_s = PEAK * replicas_max / _mean_work_s(hardware)
    counts = rng.poisson(per_s * shape)
    arrivals = np.sort(np.repeat(seconds, counts) + rng.random(int(counts.sum())))
    prompts, answers = (_lengths(mean, rng, len(arrivals)) for mean in (PROMPT_TOKENS, ANSWER_TOKENS))
    return Trace(name, arrivals, prompts, answers, duration_s)


def read_recording(path: Path) -> Recording:
    """Read a CSV file with the columns `arrival_s`, `prompt_tokens` and `completion_tokens`.

    Raises:
        TrafficError: it cannot be read, lacks a column or requests, or has a value that is no time or length.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TrafficError(f"{path}: cannot be read: {error}") from error
    reader = csv.DictReader(text.splitlines())
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise TrafficError(f"{path}: no column {', '.join(missing)}; the first line must name {', '.join(COLUMNS)}")
    rows = np.array([_row(path, reader.line_num, row) for row in reader])
    if len(rows) < 2 or rows[:, 0].max() <= rows[:, 0].min():
        raise TrafficError(f"{path}: {len(rows)} requests at one time are no traffic; at least two times are needed")
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    return Recording(path.stem, rows[:, 0] - rows[0, 0], rows[:, 1], rows[:, 2])


def scaled(recording: Recording, hardware: Hardware, replicas_max: int, seed: int) -> Trace:
    """Return recorded traffic for a tier of this size.

    Every request is repeated a Poisson number of times within `SPREAD_S`, so bursts stay bursts. The mean number makes
    the busiest minute `PEAK` of what all replicas can do.

    Args:
        recording: traffic.
        hardware: of the replicas; determines the tier's capacity.
        replicas_max: most replicas.
        seed: of the repetitions.
    """
    rng = np.random.default_rng((seed, replicas_max))
    work_s = hardware.work_s(recording.prompt_tokens, recording.completion_tokens)
    minutes = np.bincount((recording.arrivals_s // 60).astype(int), weights=work_s)
    repeats = rng.poisson(PEAK * replicas_max * 60 / minutes.max(), len(work_s))
    arrivals = np.repeat(recording.arrivals_s, repeats)
    arrivals = arrivals + SPREAD_S * rng.random(len(arrivals))
    order = np.argsort(arrivals, kind="stable")
    return Trace(
        recording.name,
        arrivals[order],
        np.repeat(recording.prompt_tokens, repeats)[order],
        np.repeat(recording.completion_tokens, repeats)[order],
        float(np.ceil(recording.arrivals_s[-1] + SPREAD_S)),
    )


def _row(path: Path, line: int, row: Mapping[str, str | None]) -> tuple[float, float, float]:
    """Return the numbers of a line. A request has at least one token of each kind."""
    try:
        arrival_s, prompt, completion = (float(row[name] or "") for name in COLUMNS)
    except ValueError as error:
        got = ", ".join(repr(row[name]) for name in COLUMNS)
        raise TrafficError(f"{path}, line {line}: got {got} for {', '.join(COLUMNS)}; needed are numbers") from error
    if not (0 <= arrival_s < np.inf and 0 <= prompt < np.inf and 0 <= completion < np.inf):
        got = f"{arrival_s:g}, {prompt:g}, {completion:g}"
        raise TrafficError(f"{path}, line {line}: got {got}; needed are finite numbers from 0 on")
    return arrival_s, max(1.0, prompt), max(1.0, completion)


def _lengths(mean: float, rng: np.random.Generator, count: int) -> Floats:
    drawn = rng.lognormal(np.log(mean) - SIGMA**2 / 2, SIGMA, count)
    return np.maximum(1.0, np.round(drawn))


def _mean_work_s(hardware: Hardware) -> float:
    """Return the mean of a made request's work, over draws that are always the same."""
    rng = np.random.default_rng(0)
    prompts, answers = (_lengths(mean, rng, 10_000) for mean in (PROMPT_TOKENS, ANSWER_TOKENS))
    return float(hardware.work_s(prompts, answers).mean())


def _slow_noise(length: int, memory_s: float, rng: np.random.Generator) -> Floats:
    """Return an Ornstein-Uhlenbeck process with unit deviation and this time constant."""
    keep = np.exp(-1 / memory_s)
    values = np.empty(length)
    value = rng.standard_normal()
    for index, shock in enumerate(rng.standard_normal(length) * np.sqrt(1 - keep**2)):
        value = keep * value + shock
        values[index] = value
    return values
