"""Seed models into the models folder, each completely or not at all.

A seed collects a model in the sibling folder `NAME.partial`. When every file is there and checked, it writes the
manifest and renames the folder. Engines look only at `NAME`, so a seed that is killed at any moment leaves nothing that
looks like a model, and the next seed continues from `NAME.partial`. A file lock, which the system releases when the
process ends, lets one seeder at a time work on a model.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cluster.weights.bundled import GROWTH, convert, find_gguf, version_of
from cluster.weights.early_exit.calibration import Calibration
from cluster.weights.early_exit.checkpoint import Target
from cluster.weights.early_exit.draft import make_draft
from cluster.weights.errors import WeightsError
from cluster.weights.folder import (
    State,
    complete_manifest,
    current_manifest,
    format_size,
    missing_reason,
    model_path,
    partial_path,
    require_space,
    state_of,
)
from cluster.weights.hub import HubAccess, download, newest_commit
from cluster.weights.manifest import Manifest, describe_files, origin, read_manifest, write_manifest
from router.registry import ModelSource


@dataclass(frozen=True, slots=True)
class Seeder:
    """Seeds models into one models folder, and reports its progress in lines of text."""

    models_dir: Path
    hub: HubAccess
    report: Callable[[str], None]
    calibration: Calibration = field(default_factory=Calibration)
    """Of the early-exit drafts that it makes."""

    def seed(self, key: str, source: ModelSource, *, again: bool = False) -> Literal["kept", "seeded"]:
        """Make sure that the models folder has the complete model. Does nothing, and imports little, if it has.

        With `again` the model is made anew even then; the old one stays until the new one is complete.

        Raises:
            WeightsError: the model could not be completed; the message says why and what to do.
        """
        path = model_path(self.models_dir, key)
        if not again and self._is_current(key, source):
            return "kept"
        from filelock import FileLock, Timeout  # only if there is something to do

        try:
            self.models_dir.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.models_dir / f".{key}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                self.report(f"{key}: waiting for another seeder of this model")
                lock.acquire()
            try:
                if not again and self._is_current(key, source):  # the other seeder has made it
                    return "kept"
                self._make(key, source, path, again=again)
            finally:
                lock.release()
        except OSError as error:
            raise WeightsError(self._explain(key, error)) from error
        return "seeded"

    def has_moved(self, key: str, source: ModelSource) -> bool:
        """Return whether the profile's revision stands for another commit than the one that is in the models folder.

        Raises:
            WeightsError: the hub cannot be asked.
        """
        manifest = current_manifest(model_path(self.models_dir, key), source)
        return (
            source.source == "hub" and manifest is not None and newest_commit(key, source, self.hub) != manifest.commit
        )

    def _is_current(self, key: str, source: ModelSource) -> bool:
        manifest = current_manifest(model_path(self.models_dir, key), source)
        if manifest is None:
            return False
        self.report(f"{key}: complete, {format_size(manifest.size)}, nothing to do")
        return True

    def _make(self, key: str, source: ModelSource, path: Path, *, again: bool) -> None:
        if state_of(self.models_dir, key) is State.FOREIGN:
            raise WeightsError(f"{path} has no manifest, so no seed made it: move it away and seed again")
        outdated = complete_manifest(path)
        if outdated is not None:
            self.report(f"{key}: replacing the one from {origin(outdated)}")
        partial = partial_path(self.models_dir, key)
        # A seed that was killed just before the rename has left a complete model.
        manifest = None if again else current_manifest(partial, source)
        if manifest is None:
            match source.source:
                case "bundled":
                    manifest = self._convert(key, source, partial)
                case "early_exit":
                    manifest = self._draft(key, source, partial)
                case "hub":
                    seeded = None if again else read_manifest(path)
                    commit = seeded.commit if seeded is not None and seeded.is_of(source) else None
                    manifest = download(key, source, partial, self.hub, self.report, commit)
            write_manifest(partial, manifest)
        _swap(partial, path)
        self.report(f"{key}: complete, {len(manifest.files)} files, {format_size(manifest.size)}, in {path}")

    def _convert(self, key: str, source: ModelSource, partial: Path) -> Manifest:
        assert source.repo is not None  # ModelSource has checked
        gguf = find_gguf(source.repo)
        require_space(self.models_dir, gguf.stat().st_size * GROWTH, key)
        _empty(partial)
        self.report(f"{key}: converting {gguf.name} of {version_of(source.repo)} (about half a minute)")
        convert(gguf, partial)
        return Manifest(
            source=source.source,
            repo=source.repo,
            revision=source.revision,
            commit=version_of(source.repo),
            files=describe_files(partial),
        )

    def _draft(self, key: str, source: ModelSource, partial: Path) -> Manifest:
        assert source.of is not None  # ModelSource has checked
        assert source.layers is not None
        target_path = model_path(self.models_dir, source.of)
        target_manifest = complete_manifest(target_path)
        if target_manifest is None:
            raise WeightsError(f"{key} is made from {source.of}: {missing_reason(self.models_dir, source.of)}")
        target = Target.of(target_path, target_manifest)
        target.check(source.layers)
        require_space(self.models_dir, target.draft_size(source.layers), key)
        _empty(partial)
        self.report(
            f"{key}: fitting the first {source.layers} of {target.layers} layers on about {self.calibration.tokens} "
            f"tokens that {source.of} writes (half a minute to a minute for 135M)"
        )
        draft_report = make_draft(target, source.layers, self.calibration, partial)
        self.report(f"{key}: {draft_report}")
        return Manifest(
            source=source.source,
            revision=source.revision,
            of=source.of,
            layers=source.layers,
            commit=target_manifest.fingerprint,
            files=describe_files(partial),
        )

    def _explain(self, key: str, error: OSError) -> str:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return (
                f"no space left while writing {key} to {self.models_dir}: free some and seed again, it continues; "
                "or name another disk with --models-dir or MODELS_DIR"
            )
        return f"cannot write {key} to {self.models_dir}: {error.strerror or error} ({error.filename or 'no file'})"


def _empty(partial: Path) -> None:
    """Start over: a conversion or a draft cannot continue from a killed one."""
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()


def _swap(partial: Path, path: Path) -> None:
    """Put the complete model in its place. If killed in between, the next seed finds it in the partial folder."""
    outdated = path.with_name(f"{path.name}.outdated")
    shutil.rmtree(outdated, ignore_errors=True)
    if path.exists():
        path.rename(outdated)
    partial.rename(path)
    shutil.rmtree(outdated, ignore_errors=True)


def select(models: Mapping[str, ModelSource], *, large: bool, only: str | None) -> tuple[list[str], list[str]]:
    """Return the models to seed, and those to skip as they are large and `large` is not set. `only` names one model.

    Raises:
        WeightsError: `only` is not in the profile.
    """
    if only is not None:
        if only not in models:
            raise WeightsError(f"--only {only!r} is not in the profile: it has {', '.join(models)}")
        models = {only: models[only]}
    chosen = [key for key, source in models.items() if large or not source.large]
    chosen.sort(key=lambda key: models[key].source == "early_exit")  # drafts after the models that they are made from
    return chosen, [key for key in models if key not in chosen]
