import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.load.processes import command_of, cpu_seconds, is_alive, process_tree, pss_bytes, stop_orphans, stop_tree

# A parent that ignores SIGTERM, with a child in a session of its own: what a clean stop has to reach.
_PARENT = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def family() -> Iterator[tuple[subprocess.Popen[str], int]]:
    parent = subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    yield parent, child
    for pid in (parent.pid, child):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
    parent.wait()
    parent.stdout.close()


def test_a_tree_holds_children_in_other_sessions_parents_first(family: tuple[subprocess.Popen[str], int]) -> None:
    parent, child = family
    tree = process_tree(parent.pid)
    assert [process.pid for process in tree] == [parent.pid, child]
    assert all(command_of(process).startswith(sys.executable) for process in tree)


def test_memory_and_cpu_time_of_a_tree_are_positive(family: tuple[subprocess.Popen[str], int]) -> None:
    tree = process_tree(family[0].pid)
    assert pss_bytes(tree) > pss_bytes(tree[:1]) > 1_000_000
    assert cpu_seconds(tree) >= 0


def test_stop_ends_the_whole_tree_and_nothing_else(family: tuple[subprocess.Popen[str], int]) -> None:
    parent, _ = family
    tree = process_tree(parent.pid)
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        stop_tree(parent.pid, grace_s=0.3)
        assert not any(map(is_alive, tree))
        assert [command_of(process) for process in tree] == ["", ""]
        assert parent.wait(timeout=5) == -signal.SIGKILL
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_process_that_does_not_exist_has_no_tree() -> None:
    assert process_tree(2**22 + 1) == []


def test_what_names_a_folder_is_ended_and_nothing_else(tmp_path: Path) -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    ours, other = (subprocess.Popen([*sleep, str(tmp_path / name)]) for name in ("a/haproxy.cfg", "ab/haproxy.cfg"))
    try:
        stop_orphans(tmp_path / "a")
        assert ours.wait(timeout=60) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for process in (ours, other):
            process.kill()
            process.wait()
