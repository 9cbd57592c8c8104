"""The files of the request log: which there are, and the requests in them, each once."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from router.errors import ConfigError
from serve_app.usage.lines import Entry, NotALineError, read_entry

_NAME: Final = re.compile(r"requests_.*\.jsonl(\.\d+)?(\.gz)?")
"""Of an ingress replica's file, also a rotated one, also packed by whoever collects them."""
_SERVE_LOGS: Final = "ray/session_*/logs/serve"


def this_machines_logs() -> list[Path]:
    """Return the folders of Serve's logs of all sessions of Ray on this machine that are still there."""
    # `ray._common.utils.get_default_ray_temp_dir`, without the second that importing Ray takes.
    base = Path(os.environ.get("RAY_TMPDIR") or "/tmp")
    return sorted({folder.resolve() for folder in base.glob(_SERVE_LOGS)})


def log_files(places: Iterable[Path]) -> list[Path]:
    """Return the files of the places, each once: files as they are, and the logs in folders and below them.

    Raises:
        ConfigError: a place is not there, or cannot be read.
    """
    found: dict[tuple[int, int], Path] = {}
    for place in places:
        try:
            files = [place] if place.is_file() else sorted(_logs_below(place))
            for file in files:
                status = file.stat()
                found.setdefault((status.st_dev, status.st_ino), file)
        except OSError as error:
            raise ConfigError(f"{place}: cannot be read: {error.strerror}") from error
    return list(found.values())


def _logs_below(folder: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        raise error

    for parent, _, names in os.walk(folder, onerror=fail):
        yield from (Path(parent) / name for name in names if _NAME.fullmatch(name))


@dataclass(slots=True)
class LogReader:
    """Reads files; a line that was in another file too, as a copy of it, counts once."""

    skipped: int = 0
    """Lines that are none of a request log."""
    repeated: int = 0
    """Lines that were there before."""
    broken: list[str] = field(default_factory=list)
    """Files that could not be read to their end, and why."""
    _seen: set[int] = field(default_factory=set)
    """Hashes of the lines: two requests do not have the same one, as it has its id, its time and how long it took."""

    def entries(self, files: Iterable[Path]) -> Iterator[Entry]:
        """The requests in the files."""
        for path in files:
            try:
                with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
                    for line in lines:
                        if (entry := self._entry(line.strip())) is not None:
                            yield entry
            except (OSError, EOFError, zlib.error) as error:
                self.broken.append(f"{path}: {error}")

    def _entry(self, line: bytes) -> Entry | None:
        if not line:
            return None
        try:
            entry = read_entry(line)
        except NotALineError:
            self.skipped += 1
            return None
        if (digest := hash(line)) in self._seen:
            self.repeated += 1
            return None
        self._seen.add(digest)
        return entry
