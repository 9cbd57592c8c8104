"""Seeding: brings models into the models folder, each one whole or not at all.

A model is collected in a sibling folder `NAME.partial`; when every file is there and checked, the manifest is written
and the folder renamed. Engines look only at `NAME`, so a seed that is killed at any moment leaves nothing that could be
taken for a model, and the next seed goes on from what is in `NAME.partial`. A file lock, which the system drops with
the process, lets one seeder work on a model at a time.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cluster.weights.bundled import GROWTH, convert, find_gguf, version_of
from cluster.weights.early_exit.checkpoint import Target
from cluster.weights.early_exit.draft import make_draft
from cluster.weights.early_exit.report import Calibration
from cluster.weights.errors import WeightsError
from cluster.weights.folder import (
    State,
    complete_manifest,
    current_manifest,
    missing_reason,
    model_path,
    partial_path,
    state_of,
)
from cluster.weights.hub import HubAccess, fetch
from cluster.weights.manifest import Manifest, describe_files, origin, write_manifest
from cluster.weights.space import FreeSpace, format_size, free_bytes, is_disk_full, require_space
from router.registry import ModelSource

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Seeder:
    """What seeding needs from the world; tests inject their own."""

    models_dir: Path
    hub: HubAccess
    say: Say
    free: FreeSpace = field(default=free_bytes)
    calibration: Calibration = field(default_factory=Calibration)  # of the drafts that it makes

    def seed(self, key: str, source: ModelSource, *, again: bool = False) -> Literal["kept", "seeded"]:
        """Make sure that the model is whole in the models folder; touches nothing, and imports little, when it is.

        `again` makes it also when it is; until the new one is whole, the old one stays in its place.

        Raises:
            WeightsError: it could not be made whole; the message says why and what to do.
        """
        path = model_path(self.models_dir, key)
        if not again and self._keep(key, source):
            return "kept"
        from filelock import FileLock, Timeout  # only where there is something to do

        try:
            self.models_dir.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.models_dir / f".{key}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                self.say(f"{key}: another seeder is at work on it, waiting for it")
                lock.acquire()
            try:
                if not again and self._keep(key, source):  # the other seeder has done it
                    return "kept"
                self._make(key, source, path)
            finally:
                lock.release()
        except OSError as error:
            raise WeightsError(self._explain(key, error)) from error
        return "seeded"

    def _keep(self, key: str, source: ModelSource) -> bool:
        manifest = current_manifest(self.models_dir, key, source)
        if manifest is None:
            return False
        self.say(f"{key}: complete, {format_size(manifest.size)}, nothing to do")
        return True

    def _make(self, key: str, source: ModelSource, path: Path) -> None:
        if state_of(self.models_dir, key) is State.FOREIGN:
            raise WeightsError(f"{path} has no manifest, so no seed made it: move it away and seed again")
        outdated = complete_manifest(path)
        if outdated is not None:
            self.say(f"{key}: replacing the one from {origin(outdated)}")
        partial = partial_path(self.models_dir, key)
        match source.source:
            case "bundled":
                manifest = self._convert(key, source, partial)
            case "early_exit":
                manifest = self._draft(key, source, partial)
            case "hub":
                manifest = fetch(key, source, partial, self.hub, self.say, self.free)
        write_manifest(partial, manifest)
        _swap(partial, path)
        self.say(f"{key}: complete, {len(manifest.files)} files, {format_size(manifest.size)}, in {path}")

    def _convert(self, key: str, source: ModelSource, partial: Path) -> Manifest:
        assert source.repo is not None  # ModelSource has checked
        gguf = find_gguf(source.repo)
        require_space(self.models_dir, gguf.stat().st_size * GROWTH, key, self.free)
        _begin_anew(partial)
        self.say(f"{key}: converting {gguf.name} of {version_of(source.repo)} (about half a minute)")
        convert(gguf, partial)
        return Manifest(
            source=source.source,
            repo=source.repo,
            revision=source.revision,
            commit=version_of(source.repo),
            files=describe_files(partial, (file.name for file in partial.iterdir())),
        )

    def _draft(self, key: str, source: ModelSource, partial: Path) -> Manifest:
        assert source.of is not None  # ModelSource has checked
        assert source.layers is not None
        of = model_path(self.models_dir, source.of)
        whole = complete_manifest(of)
        if whole is None:
            raise WeightsError(f"{key} is made of {source.of}: {missing_reason(self.models_dir, source.of)}")
        target = Target.of(of, whole)
        target.check(source.layers)
        require_space(self.models_dir, target.draft_size(source.layers), key, self.free)
        _begin_anew(partial)
        self.say(
            f"{key}: fitting the first {source.layers} of {target.layers} layers on about {self.calibration.tokens} "
            f"tokens that {source.of} writes (half a minute to a minute for 135M)"
        )
        report = make_draft(target, source.layers, self.calibration, partial)
        self.say(f"{key}: {report}")
        return Manifest(
            source=source.source,
            revision=source.revision,
            of=source.of,
            layers=source.layers,
            commit=whole.fingerprint,
            files=describe_files(partial, (file.name for file in partial.iterdir())),
        )

    def _explain(self, key: str, error: OSError) -> str:
        if is_disk_full(error):
            return (
                f"no space left while writing {key} to {self.models_dir}: free some and seed again, it continues; "
                "or name another disk with --models-dir or MODELS_DIR"
            )
        return f"cannot write {key} to {self.models_dir}: {error.strerror or error} ({error.filename or 'no file'})"


def _begin_anew(partial: Path) -> None:
    """What is made here cannot go on from its middle: what a killed seed left is worth nothing."""
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()


def _swap(partial: Path, path: Path) -> None:
    """Put the whole model in its place. Killed in between, the next seed finds all files in the partial folder."""
    outdated = path.with_name(f"{path.name}.outdated")
    shutil.rmtree(outdated, ignore_errors=True)
    if path.exists():
        path.rename(outdated)
    partial.rename(path)
    shutil.rmtree(outdated, ignore_errors=True)


def select(models: Mapping[str, ModelSource], *, large: bool, only: str | None) -> tuple[list[str], list[str]]:
    """Keys to seed, and keys to skip because they are large and `large` is not set. `only` names a single model.

    Raises:
        WeightsError: `only` is not in the profile.
    """
    if only is not None:
        if only not in models:
            raise WeightsError(f"--only {only!r} is not in the profile: it has {', '.join(models)}")
        models = {only: models[only]}
    chosen = [key for key, source in models.items() if large or not source.large]
    chosen.sort(key=lambda key: models[key].source == "early_exit")  # drafts after the models that they are made of
    return chosen, [key for key in models if key not in chosen]
