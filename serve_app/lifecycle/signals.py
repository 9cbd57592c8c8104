"""SIGINT and SIGTERM of the process that serves, and the end of all that it started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from types import FrameType
from typing import Final

import psutil

_PR_SET_CHILD_SUBREAPER: Final = 36  # prctl(2)


class StopSignals:
    """The first signal sets `wanted`; the second kills all that this process started, and ends it.

    Ray starts its processes with SIGINT blocked, and what they start inherits that: a Ctrl-C, which goes to the whole
    process group, reaches this process alone.
    """

    def __init__(self) -> None:
        self.wanted = threading.Event()

    def listen(self) -> None:
        """Take both signals; again after something else has taken one."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.wanted.is_set():
            kill_descendants()
            os._exit(128 + number)
        adopt_orphans()
        self.wanted.set()


def adopt_orphans() -> None:
    """Have processes below this one whose parent dies become its children, so that `kill_descendants` finds them."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_descendants() -> None:
    """SIGKILL for every process below this one: Ray's, its workers, HAProxy, engines."""
    # Parents first, so that none starts another in place of a child that is gone; until none is left, as one may have
    # been starting a child meanwhile.
    while children := [child for child in psutil.Process().children(recursive=True) if _alive(child)]:
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(children, timeout=1)


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
