"""A profile with a GPU entry that drafts and one that does not, and engines that only pretend."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bench.engine.engines import EngineGoneError, EngineProcess
from bench.kit.plan import Engine, Measurement, Models
from bench.kit.results import Results
from bench.kit.run import AGAIN, Run
from cluster.profiles.reading import load_profile, merge
from router.registry import Profile

MACHINE = {"card": "H100", "driver": "580", "cards": 1, "memory_gib": 80.0, "power_limit": "700 W", "versions": {}}
MADE_BY = {"date": "2026-11-29", "git": "abc", "command": "python -m bench.gpu", "load_average_before": 0.5}
ALL_THERE = Models({}, frozenset(), {})
GPU_TIER = {"gpu": "H100", "gpus": 1}


@pytest.fixture
def profile() -> Profile:
    """The local profile on GPUs: `eco` drafts by n-gram, `performance` by a model, the others not."""
    text = load_profile("local").model_dump_json().replace('"method":"ngram"', '"method":"ngram_gpu"')
    local = json.loads(text)
    return Profile.model_validate(merge(local, {"tiers": dict.fromkeys(local["tiers"], GPU_TIER)}))


@dataclass
class Pretended:
    """Engines that take `start_s` to start and `other_s` for a measurement."""

    start_s: float = 60.0
    other_s: float = 5.0
    broken: tuple[str, ...] = ()
    """Roles whose engines end while they start."""
    fault: tuple[str, str, Exception] | None = None
    """What goes wrong in such measurements of engines of a role: (role, begin of the measurement's key, error)."""
    now_s: float = 0.0
    started: list[str] = field(default_factory=list)
    emptied: list[bool] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    up: bool = False

    def clock(self) -> float:
        return self.now_s

    @contextmanager
    def start(self, engine: Engine, empty: bool) -> Iterator[Any]:
        self.started.append(f"{engine.label} {engine.role}")
        self.emptied.append(empty)
        self.up = False
        yield None

    def measure(self, process: EngineProcess, engine: Engine, what: Measurement, limit_s: float) -> dict[str, Any]:
        takes_s = (0.0 if self.up else self.start_s) + (0.0 if what.kind == "start" else self.other_s)
        if takes_s > limit_s:
            self.now_s += limit_s
            raise EngineGoneError("the engine is gone:\nended after its time")
        self.now_s += takes_s
        if engine.role in self.broken:
            raise EngineGoneError(
                "the engine is gone:\nINFO: loading\ntorch.OutOfMemoryError: CUDA out of memory.\nBye."
            )
        if self.fault is not None and engine.role == self.fault[0] and what.key.startswith(self.fault[1]):
            raise self.fault[2]
        self.up = True
        if what != AGAIN:
            self.done.append(f"{engine.label} {engine.role} {what.key}")
        return {}

    def run(self, path: Path, minutes: float) -> Run:
        """Return a run that continues the file."""
        results = Results.read(path, dict(MACHINE), MADE_BY, "local")
        return Run(results, self.start, self.measure, self.clock, self.now_s + 60 * minutes, lambda line: None)
