"""Finds the root cause of a failed start in the output files of this process and its children.

vLLM's engine runs in child processes. When one fails to start, the parent's exception only says "see root cause above".
In a Ray worker stdout and stderr are files, so "above" can be read.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

# The last words of a traceback line, after vLLM's log prefix: "(EngineCore pid=7) ERROR 11-27 ... ValueError: text".
_EXCEPTION = re.compile(r"\b([A-Za-z_]*(?:Error|Exception)): (\S.*)$")
# Texts that only report the failure of another process; the last one is ours.
_ECHOES = (
    "Engine core initialization failed",
    "WorkerProc initialization failed",
    "Worker proc initialization failed",
    "EngineCore encountered an issue",
    "EngineDeadError",
    "the engine has died",
)
_MAX_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class ProcessOutput:
    """The output files of this process, and how long they were at some moment."""

    starts: tuple[tuple[str, int], ...]
    """(path, offset in bytes) of each distinct regular file behind stdout and stderr."""

    @classmethod
    def begin(cls) -> ProcessOutput:
        """Return the output files with their present ends."""
        paths = []
        for descriptor in (1, 2):
            try:
                path = os.readlink(f"/proc/self/fd/{descriptor}")
            except OSError:
                continue
            if os.path.isfile(path) and path not in paths:
                paths.append(path)
        return cls(tuple((path, os.path.getsize(path)) for path in paths))

    def text(self) -> str:
        """Return what was written since, at most the last megabyte of each file."""
        parts = []
        for path, start in self.starts:
            with open(path, "rb") as file:
                file.seek(max(start, os.path.getsize(path) - _MAX_BYTES))
                parts.append(file.read().decode("utf-8", "replace"))
        return "\n".join(parts)

    def cause_of(self, reason: str) -> str:
        """Return the reason; if it only says that another process failed, that process's reason, where it is known."""
        return (self.root_cause() or reason) if _is_echo(reason) else reason

    def root_cause(self) -> str | None:
        """Return the first exception in the output that is not an echo of another one; None when there is none."""
        return first_exception(self.text())


def first_exception(text: str) -> str | None:
    """Return the first `SomethingError: message` that does not merely report another process's failure."""
    for line in text.splitlines():
        match = _EXCEPTION.search(line)
        if match and not _is_echo(match[0]):
            return f"{match[1]}: {match[2].strip()}"
    return None


def _is_echo(text: str) -> bool:
    return any(echo in text for echo in _ECHOES)
