"""Process trees: their commands, memory and CPU time, and a stop by process id."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import psutil
from psutil import Process


def process_tree(root: int) -> list[Process]:
    """Return the process and its descendants, parents first; empty if it is gone."""
    try:
        first = Process(root)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def command_of(process: Process) -> str:
    """Return its command line, or what it wrote over it; empty if it is gone."""
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.Error:
        return ""


def is_alive(process: Process) -> bool:
    """Return whether it runs. A zombie does not, nor does a later process with the same id."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def cpu_seconds(processes: Iterable[Process]) -> float:
    """Return the CPU time that the processes have used so far."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def pss_bytes(processes: Iterable[Process]) -> int:
    """Return the proportional resident memory: a page shared by n processes counts 1/n in each, so trees add up."""
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total


def stop_tree(root: int, grace_s: float = 15.0) -> None:
    """Terminate the process, wait for it and its descendants, then kill those of them that are left.

    The application drains on SIGTERM: open streams get `grace_s`.
    """
    tree = process_tree(root)
    for send, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        # SIGTERM goes to the root alone, which ends its children in order; SIGKILL to all that are left.
        for process in tree[:1] if send == signal.SIGTERM else tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(send)
        deadline = time.monotonic() + wait_s
        # Not `psutil.wait_procs`, which would take the root's exit code away from whoever started it.
        while any(map(is_alive, tree)) and time.monotonic() < deadline:
            tree += [process for process in process_tree(root) if process not in tree]
            time.sleep(0.1)
        if not any(map(is_alive, tree)):
            return


def stop_orphans(folder: Path) -> None:
    """Kill the processes whose command names something in the folder: HAProxy outlives a manager that was killed."""
    for process in psutil.process_iter():
        if f"{folder}/" in command_of(process):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
