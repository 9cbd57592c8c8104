"""Process trees from /proc: their memory and CPU time, and a stop by process id."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Process:
    """One process; the start time distinguishes it from a later one with the same id."""

    pid: int
    parent: int
    state: str
    cpu_s: float
    start_ticks: int

    def command(self) -> str:
        """Return its command line, or what it wrote over it; empty if it is gone."""
        try:
            raw = Path(f"/proc/{self.pid}/cmdline").read_bytes()
        except OSError:
            return ""
        return raw.replace(b"\0", b" ").decode(errors="replace").strip()


def read_process(pid: int) -> Process | None:
    """Return the process with this id, or None."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field, the name, may hold spaces and brackets: read from its last bracket on.
    fields = stat.rpartition(")")[2].split()
    return Process(
        pid=pid,
        state=fields[0],
        parent=int(fields[1]),
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        start_ticks=int(fields[19]),
    )


def process_tree(root: int) -> list[Process]:
    """Return the process and its descendants, parents first; empty if it is gone."""
    everyone = [read_process(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    children: dict[int, list[Process]] = {}
    for process in everyone:
        if process is not None:
            children.setdefault(process.parent, []).append(process)
    first = read_process(root)
    tree = [first] if first is not None else []
    for process in tree:  # grows while it is walked
        tree.extend(children.get(process.pid, ()))
    return tree


def cpu_seconds(processes: Iterable[Process]) -> float:
    """Return the CPU time that the processes had used when they were read."""
    return sum(process.cpu_s for process in processes)


def pss_bytes(processes: Iterable[Process]) -> int:
    """Return the proportional resident memory: a page shared by n processes counts 1/n in each, so trees add up."""
    total = 0
    for process in processes:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="utf-8").splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def stop_tree(root: int, grace_s: float = 15.0) -> None:
    """Terminate the process, wait for it and its descendants, then kill those of them that are left.

    The application drains on SIGTERM: open streams get `grace_s`.
    """
    tree = process_tree(root)
    for send, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        # SIGTERM goes to the root alone, which ends its children in order; SIGKILL to all that are left.
        for process in tree[:1] if send == signal.SIGTERM else tree:
            if _alive(process):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, send)
        deadline = time.monotonic() + wait_s
        while any(map(_alive, tree)) and time.monotonic() < deadline:
            known = {process.pid for process in tree}
            tree += [process for process in process_tree(root) if process.pid not in known]
            time.sleep(0.1)
        if not any(map(_alive, tree)):
            return


def _alive(process: Process) -> bool:
    now = read_process(process.pid)
    return now is not None and now.start_ticks == process.start_ticks and now.state != "Z"
