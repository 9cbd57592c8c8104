"""Traffic for the autoscaling benchmark: a day, bursts, and steps, as arrival times and answer lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import pi
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bench.scaling.simulation import Hardware, Trace

MEAN_TOKENS: Final = 400.0
TOKENS_SIGMA: Final = 0.8
"""Answer lengths are log-normal: mean, and standard deviation of the logarithm."""
PEAK: Final = 0.8
"""Highest load of every trace, as a share of the capacity of all replicas."""

Floats = NDArray[np.float64]
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


def make_trace(name: str, hardware: Hardware, replicas_max: int, duration_s: float, seed: int) -> Trace:
    """Return traffic of one shape for a tier of this size.

    Args:
        name: a key of `SHAPES`.
        hardware: of the replicas; determines the tier's capacity.
        replicas_max: most replicas.
        duration_s: length of the trace.
        seed: of arrivals and answer lengths.
    """
    rng = np.random.default_rng((seed, replicas_max, sorted(SHAPES).index(name)))
    seconds: Floats = np.arange(0.0, duration_s, dtype=np.float64)
    service_s = hardware.service_s(MEAN_TOKENS, hardware.slots - 1)
    peak_per_s = PEAK * replicas_max * hardware.slots / service_s
    counts = rng.poisson(peak_per_s * np.maximum(0.0, SHAPES[name](seconds, rng)))
    arrivals = np.sort(np.repeat(seconds, counts) + rng.random(int(counts.sum())))
    mu = np.log(MEAN_TOKENS) - TOKENS_SIGMA**2 / 2
    tokens = np.maximum(1.0, rng.lognormal(mu, TOKENS_SIGMA, len(arrivals)))
    return Trace(name, arrivals.tolist(), tokens.tolist(), duration_s)


def _slow_noise(length: int, memory_s: float, rng: np.random.Generator) -> Floats:
    """Return an Ornstein-Uhlenbeck process with unit deviation and this time constant."""
    keep = np.exp(-1 / memory_s)
    values = np.empty(length)
    value = rng.standard_normal()
    for index, shock in enumerate(rng.standard_normal(length) * np.sqrt(1 - keep**2)):
        value = keep * value + shock
        values[index] = value
    return values
