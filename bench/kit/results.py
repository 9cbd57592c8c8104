"""The results of a card, in one JSON file: what was measured, what failed, what each took. A later run continues it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.kit.plan import Engine, Measurement
from bench.reporting.report import write_json

SAME: Final = ("card", "driver", "versions")
"""What must not change between runs of one file."""
Json = dict[str, Any]


class OtherMachineError(ValueError):
    """The file has the results of another card, driver or version."""


@dataclass(slots=True)
class Results:
    """Results by engine and measurement.

    Args:
        machine: card, driver, versions: see `card.py`.
        made_by: see `provenance`.
        path: the file.
    """

    machine: Json
    made_by: Mapping[str, Any]
    path: Path
    engines: dict[str, Json] = field(default_factory=dict)
    application: Json = field(default_factory=dict)
    """By tier: seconds to the first token through the application, or why not."""

    @classmethod
    def read(cls, path: Path, machine: Json, made_by: Mapping[str, Any]) -> Results:
        """Return the results in the file, or none if there is no file.

        Raises:
            OtherMachineError: they are of another machine.
        """
        if not path.is_file():
            return cls(machine, made_by, path)
        data = json.loads(path.read_text(encoding="utf-8"))
        before = data["machine"]
        changed = [f"{key} {before[key]} (now {machine[key]})" for key in SAME if before[key] != machine[key]]
        if changed:
            raise OtherMachineError(f"{path} has results of {', '.join(changed)}: name another --json")
        return cls(machine, made_by, path, data["engines"], data["application"])

    def of(self, engine: Engine) -> Json:
        """Return what is known of an engine, to read and to write."""
        return self.engines.setdefault(
            engine.key,
            {
                "label": engine.label,
                "role": engine.role,
                "entry": engine.entry.name,
                "target": engine.entry.target,
                "tier_gpu": engine.tier.gpu,
                "dummy": list(engine.dummy),
                "impossible": None,
                "reason": None,
                "measured": {},
            },
        )

    def forget_failures(self) -> None:
        """Let engines that failed be tried again."""
        for engine in self.engines.values():
            engine["reason"] = None

    def get(self, engine: Engine, measurement: Measurement) -> Json | None:
        """Return a finished measurement."""
        found: Json | None = self.of(engine)["measured"].get(measurement.key)
        return found

    def put(self, engine: Engine, measurement: Measurement, result: Mapping[str, Any], took_s: float) -> None:
        """Keep a finished measurement, in the file too."""
        self.of(engine)["measured"][measurement.key] = {
            "kind": measurement.kind,
            "setting": measurement.setting,
            "batch": measurement.batch,
            "took_s": round(took_s, 1),
            "date": self.made_by["date"],
            **result,
        }
        self.write()

    def say_impossible(self, engine: Engine) -> None:
        """Keep why an engine cannot be started here, or that it can: this may change between runs."""
        self.of(engine)["impossible"] = engine.impossible

    def fail(self, engine: Engine, reason: str) -> None:
        """Keep why an engine could not be measured; it is not tried again."""
        self.of(engine)["reason"] = reason
        self.write()

    def failed(self, engine: Engine) -> bool:
        """Return whether it could not be measured."""
        return self.of(engine)["reason"] is not None

    def took_s(self, measurement: Measurement) -> float | None:
        """Return the longest that such a measurement took on any engine so far, s."""
        times = [
            done["took_s"]
            for engine in self.engines.values()
            for done in engine["measured"].values()
            if (done["kind"], done["batch"]) == (measurement.kind, measurement.batch)
        ]
        return max(times, default=None)

    def write(self) -> None:
        """Write the file."""
        data = {"machine": self.machine, "engines": self.engines, "application": self.application}
        write_json(self.path, data, self.made_by)
