"""The results of a card, in one JSON file: what was measured, what failed, what each took. A later run continues it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from bench.kit.plan import Engine, Measurement
from bench.reporting.report import write_json
from router.errors import ConfigError, describe_problems

SAME: Final = ("card", "driver", "versions")
"""What must not change between runs of one file."""
Json = dict[str, Any]


class OtherRunError(ValueError):
    """The file has the results of another card, driver or version, or of another profile."""


class _Machine(BaseModel):
    card: str
    driver: str | None
    versions: Json


class _Measured(BaseModel):
    kind: str
    setting: str
    batch: int
    took_s: float


class _Engine(BaseModel):
    label: str
    role: str
    entry: str
    target: str
    tier_gpu: str | None
    dummy: list[str]
    impossible: str | None
    reason: str | None
    measured: dict[str, _Measured]


class _File(BaseModel):
    """What a file must have to be continued; more is kept as it is."""

    machine: _Machine
    engines: dict[str, _Engine]
    application: Json


@dataclass(slots=True)
class Results:
    """Results by engine and measurement.

    Args:
        machine: card, driver, versions: see `card.py`.
        made_by: see `provenance`.
        path: the file.
        profile: name of the profile that is measured.
    """

    machine: Json
    made_by: Mapping[str, Any]
    path: Path
    profile: str
    engines: dict[str, Json] = field(default_factory=dict)
    application: Json = field(default_factory=dict)
    """By tier: seconds to the first token through the application, or why not."""

    @classmethod
    def read(cls, path: Path, machine: Json, made_by: Mapping[str, Any], profile: str) -> Results:
        """Return the results in the file, or none if there is no file. Writes nothing.

        Raises:
            ConfigError: it can be no file of this command, is none, or cannot be read.
            OtherRunError: its results are of another machine or another profile.
        """
        if path.suffix == ".md":
            raise ConfigError(f"--json: got {path}, must not end in .md, as the table is written there")
        try:
            there, is_file = path.exists(), path.is_file()
        except OSError as error:
            raise ConfigError(f"--json: got {path}, cannot be read: {error.strerror}") from error
        if not there:
            return cls(machine, made_by, path, profile)
        if not is_file:
            raise ConfigError(
                f"--json: got {path}, which is {'a folder' if path.is_dir() else 'no file'}, must be a file"
            )
        data = _read(path)
        if data.get("profile") != profile:
            of = f"profile {data['profile']!r}" if "profile" in data else "a profile that it does not name"
            raise OtherRunError(f"{path} has results of {of}, not of {profile!r}: name another --json")
        before = data["machine"]
        changed = [f"{key} {before[key]} (now {machine[key]})" for key in SAME if before[key] != machine[key]]
        if changed:
            raise OtherRunError(f"{path} has results of {', '.join(changed)}: name another --json")
        return cls(machine, made_by, path, profile, data["engines"], data["application"])

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

    def check_writable(self) -> None:
        """Make the folder of the file, and check that both can be written.

        Raises:
            ConfigError: they cannot.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path.parent):
                pass
        except OSError as error:
            raise ConfigError(f"--json: got {self.path}, cannot be written: {error.strerror}") from error
        if self.path.exists() and not os.access(self.path, os.W_OK):
            raise ConfigError(f"--json: got {self.path}, cannot be written: it is read-only")

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
            "git": self.made_by["git"],
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
        """Write the file: all of it or, when this process ends meanwhile, nothing."""
        data = {
            "profile": self.profile,
            "machine": self.machine,
            "engines": self.engines,
            "application": self.application,
        }
        whole = self.path.with_name(f"{self.path.name}.new")
        write_json(whole, data, self.made_by)
        whole.replace(self.path)


def _read(path: Path) -> Json:
    """Return the content of a file of this command."""
    none = f"--json: got {path}, which is no result of this command: "
    try:
        data: Json = json.loads(path.read_text(encoding="utf-8"))
        _File.model_validate(data)
    except OSError as error:
        raise ConfigError(f"--json: got {path}, cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise ConfigError(none + describe_problems(error)[0]) from error
    except ValueError as error:  # not JSON, or not even text
        raise ConfigError(none + "it is not JSON") from error
    return data
