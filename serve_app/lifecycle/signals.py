"""SIGINT and SIGTERM of the serving process, and the end of everything that it started."""

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
    """The first signal sets `received`; the second kills everything that this process started, and this process.

    Ray starts its processes with SIGINT blocked, and their children inherit that. So a Ctrl-C, which goes to the whole
    process group, reaches only this process.
    """

    def __init__(self) -> None:
        self.received = threading.Event()

    def listen(self) -> None:
        """Handle both signals. Call it again after other code has set a handler."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.received.is_set():
            kill_descendants()
            os._exit(128 + number)
        adopt_orphans()
        self.received.set()


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent dies, so that `kill_descendants` finds them."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_descendants() -> None:
    """Send SIGKILL to every descendant: Ray's processes, workers, HAProxy, engines."""
    # Parents first, so that none restarts a child that is gone. Until none is left, because one may start a child
    # meanwhile.
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
