"""Measure one engine after the other until the time is over.

Nothing is begun that is not expected to end in time, and nothing after a second start that would take the time for the
second start of another engine. What is begun nevertheless ends with the time: an engine that does
not answer by then is ended, with its processes, and its measurement is left for the next run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

from bench.engine.engines import EngineGoneError, EngineProcess, RefusedError
from bench.kit.plan import Engine, Measurement
from bench.kit.results import Results

START_S: Final = {True: 150.0, False: 60.0}
"""Start of an engine that has not been seen yet, by whether it runs on a GPU (an H100: 27 s of imports, 76 s)."""
OTHERS_S: Final = 15.0
"""Any other measurement that has not been seen yet."""
AGAIN: Final = Measurement("start", "again")
"""Of an engine whose start was measured in an earlier run: not kept."""
SPARE_S: Final = 5.0
"""For ending the last engine, and writing the table."""


class NothingToCompareError(RuntimeError):
    """The answers of the engine without speculation are missing."""


Measure = Callable[[EngineProcess, Engine, Measurement, float], dict[str, Any]]
"""(process, engine, measurement, longest time in s) to the figures."""
Start = Callable[[Engine, bool], AbstractContextManager[EngineProcess]]
"""Starts an engine; the flag says whether with empty compile caches."""


@dataclass(slots=True)
class Run:
    """One run of the kit.

    Args:
        results: takes the figures.
        start: starts an engine.
        measure: measures on it.
        clock: now, s.
        deadline_s: when the run must have ended, on that clock.
        report: takes lines about the progress.
        hopeless: whether a measurement cannot be made as long as another engine is broken.
    """

    results: Results
    start: Start
    measure: Measure
    clock: Callable[[], float]
    deadline_s: float
    report: Callable[[str], None]
    hopeless: Callable[[Engine, Measurement], bool] = lambda engine, measurement: False

    def engines(self, engines: Sequence[Engine]) -> int:
        """Measure what is missing; return how many measurements are left for another run."""
        left = 0
        for place, engine in enumerate(engines):
            self.results.say_impossible(engine)
            if engine.impossible is None and not self.results.failed(engine):
                left += self._engine(engine, self._starts_s(engines[place + 1 :]) if engine.again else 0.0)
        return left

    def left(self, engines: Sequence[Engine]) -> int:
        """Return how many measurements are missing."""
        able = [engine for engine in engines if engine.impossible is None and not self.results.failed(engine)]
        return sum(len(self._todo(engine)) for engine in able)

    def _todo(self, engine: Engine) -> list[Measurement]:
        return [
            each
            for each in engine.measurements
            if self.results.get(engine, each) is None and not self.hopeless(engine, each)
        ]

    def _starts_s(self, engines: Sequence[Engine]) -> float:
        """Return how long the missing starts of these engines take, s."""
        able = [engine for engine in engines if engine.impossible is None and not self.results.failed(engine)]
        return sum(self._start_s(each) for each in able if any(what.kind == "start" for what in self._todo(each)))

    def _engine(self, engine: Engine, kept_s: float) -> int:
        """Measure what is missing on one engine.

        Args:
            engine: the engine.
            kept_s: time that is kept for the starts of other engines, s.

        Returns:
            How many measurements are left.
        """
        todo = self._todo(engine)
        if not todo:
            return 0
        first_s = 0.0 if todo[0].kind == "start" else self._other_s(todo[0]) + kept_s
        if not self._fits(self._start_s(engine) + first_s):
            self.report(f"{engine.label} ({engine.role}): left for the next run")
            return len(todo)
        self.report(f"{engine.label} ({engine.role}): starting, {len(todo)} measurements")
        try:
            return self._measure_all(engine, todo, kept_s)
        except EngineGoneError as error:
            if self.clock() < self._end_s:
                self._failed(engine, reason_in(str(error)))
        except RefusedError as error:
            self._failed(engine, str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the other engines are measured
            self._failed(engine, f"{type(error).__name__}: {error}"[:300])
        if self.results.failed(engine):
            return 0
        return len(self._todo(engine))

    def _failed(self, engine: Engine, reason: str) -> None:
        self.results.fail(engine, reason)
        self.report(f"{engine.label} ({engine.role}): failed: {reason}")

    def _measure_all(self, engine: Engine, todo: Sequence[Measurement], kept_s: float) -> int:
        left = 0
        with self.start(engine, todo[0] == Measurement("start", "empty")) as process:
            if todo[0].kind != "start":
                # An engine's first answer takes longer than others, and comes after its start.
                self.measure(process, engine, AGAIN, self._end_s - self.clock())
            for measurement in todo:
                since_s = self.clock()
                if measurement.kind != "start" and not self._fits(self._other_s(measurement) + kept_s):
                    left += 1
                    continue
                try:
                    result = self.measure(process, engine, measurement, self._end_s - since_s)
                except NothingToCompareError as error:
                    self.report(f"  {measurement.key}: {error}")
                    continue
                now_s = self.clock()
                self.results.put(engine, measurement, result, now_s - since_s)
                self.report(f"  {measurement.key}: {now_s - since_s:.1f} s")
        return left

    @property
    def _end_s(self) -> float:
        return self.deadline_s - SPARE_S

    def _fits(self, seconds: float) -> bool:
        return self.clock() + seconds <= self._end_s

    def _start_s(self, engine: Engine) -> float:
        seen_s = self.results.took_s(Measurement("start", "empty"))
        return START_S[engine.tier.gpu is not None] if seen_s is None else seen_s

    def _other_s(self, measurement: Measurement) -> float:
        seen_s = self.results.took_s(measurement)
        return OTHERS_S if seen_s is None else 1.2 * seen_s


def reason_in(log: str) -> str:
    """Return the last error that an engine's log names, in one line of at most 300 characters."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line.partition(":")[0].rpartition(" ")[2] and ": " in line]
    return (errors or lines or ["no reason in its log"])[-1][:300]
