"""The manifest of a model folder: its files with sizes and checksums, and where they came from."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from router.registry import Frozen, ModelSource

MANIFEST_NAME = "weights-manifest.json"


class FileEntry(Frozen):
    """One file of a model."""

    size: int = Field(ge=0, description="Size, bytes.")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the content, hexadecimal.")


class Manifest(Frozen):
    """The manifest is written last, when every file is in place and checked."""

    source: Literal["bundled", "hub", "early_exit"] = Field(description="As in the profile's `models`.")
    repo: str | None = Field(default=None, description="As in the profile's `models`.")
    revision: str = Field(description="As in the profile's `models`.")
    of: str | None = Field(default=None, description="As in the profile's `models`.")
    layers: int | None = Field(default=None, description="As in the profile's `models`.")
    commit: str = Field(
        description="Hub commit, version of the package, or fingerprint of the model that the files came from."
    )
    files: dict[str, FileEntry] = Field(description="Every file, by its path inside the model's folder.")

    @property
    def size(self) -> int:
        """Size of all files together, bytes."""
        return sum(entry.size for entry in self.files.values())

    def is_of(self, source: ModelSource) -> bool:
        """Return whether the files are what the profile asks for now: a profile may name another repository later."""
        return all(getattr(self, key) == getattr(source, key) for key in ("source", "repo", "revision", "of", "layers"))

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that two models share only if all their files are equal."""
        lines = "".join(f"{entry.sha256} {name}\n" for name, entry in sorted(self.files.items()))
        return hashlib.sha256(lines.encode()).hexdigest()[:16]


def origin(model: ModelSource | Manifest) -> str:
    """Return where a model is from: `bundled PACKAGE`, `hub REPO@REVISION` or `early_exit MODEL, N layers`.

    Of a model that was seeded from the hub the revision is the commit.
    """
    match model.source:
        case "bundled":
            return f"bundled {model.repo}"
        case "hub":
            return f"hub {model.repo}@{model.commit[:12] if isinstance(model, Manifest) else model.revision}"
        case "early_exit":
            return f"early_exit {model.of}, {model.layers} layers"


def read_manifest(folder: Path) -> Manifest | None:
    """Return the folder's manifest, or None if there is none that can be read."""
    try:
        return Manifest.model_validate_json((folder / MANIFEST_NAME).read_bytes())
    except (OSError, ValidationError):
        return None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest into the folder, completely or not at all.

    Raises:
        OSError: the folder cannot be written.
    """
    temporary = folder / f"{MANIFEST_NAME}.new"
    with temporary.open("w", encoding="utf-8") as file:
        file.write(manifest.model_dump_json(indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / MANIFEST_NAME)


def describe_file(path: Path) -> FileEntry:
    """Return a file's size and checksum, read from the disk.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        return FileEntry(size=path.stat().st_size, sha256=hashlib.file_digest(file, "sha256").hexdigest())


def describe_files(folder: Path) -> dict[str, FileEntry]:
    """Return the entries of all files in a folder, except its manifest.

    Raises:
        OSError: a file cannot be read.
    """
    return {path.name: describe_file(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST_NAME}


def wrong_sizes(folder: Path, manifest: Manifest) -> list[str]:
    """Return the files that are missing or have another size than in the manifest. Reads no content."""
    return [name for name, entry in manifest.files.items() if _size(folder / name) != entry.size]


def damaged_files(folder: Path, manifest: Manifest) -> list[str]:
    """Return the files whose content differs from the manifest. Reads everything: about a second per GB."""
    return [
        name
        for name, entry in manifest.files.items()
        if _size(folder / name) != entry.size or describe_file(folder / name) != entry
    ]


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
