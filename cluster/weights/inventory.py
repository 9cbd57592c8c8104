"""The rows of `list`: a profile's models, and their state in the models folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cluster.weights.folder import State, complete_manifest, current_manifest, format_size, model_path, state_of
from cluster.weights.manifest import origin
from router.registry import Profile


@dataclass(frozen=True, slots=True)
class Row:
    """One model of a profile."""

    model: str
    source: str  # by `origin`
    used_by: tuple[str, ...]  # `tier/entry`, with `(draft)` if it only drafts there
    size: int  # bytes: on disk if it is complete, else as the profile plans
    large: bool
    state: State | str  # a State, or `other` if it is complete and not what the profile asks for now


def inventory(profile: Profile, models_dir: Path) -> list[Row]:
    """Return one row per model of the profile, in its order."""
    return [_row(profile, models_dir, key) for key in profile.models]


def _row(profile: Profile, models_dir: Path, key: str) -> Row:
    source = profile.models[key]
    path = model_path(models_dir, key)
    manifest, current = complete_manifest(path), current_manifest(path, source)
    return Row(
        model=key,
        source=origin(current or source),
        used_by=tuple(_uses(profile, key)),
        size=manifest.size if manifest else round(source.size_gb * 1e9),
        large=source.large,
        state="other" if manifest and not current else state_of(models_dir, key),
    )


def _uses(profile: Profile, key: str) -> Iterable[str]:
    for tier, settings in profile.tiers.items():
        for entry in settings.chain:
            if entry.target == key:
                yield f"{tier}/{entry.name}"
            if entry.speculation is not None and entry.speculation.draft == key:
                yield f"{tier}/{entry.name} (draft)"


def table(rows: Iterable[Row]) -> str:
    """Return the rows as text with aligned columns. A model with several uses takes several lines."""
    lines = [("MODEL", "SOURCE", "SIZE", "STATE", "USED BY (tier/entry)")]
    for row in rows:
        size = f"{format_size(row.size)}{' large' if row.large else ''}"
        first, *others = row.used_by or ("-",)
        lines.append((row.model, row.source, size, str(row.state), first))
        lines.extend(("", "", "", "", use) for use in others)
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[4]]).rstrip()
        for line in lines
    )
