import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from bench.load.processes import cpu_seconds, process_tree, pss_bytes, read_process, stop_tree

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
        if read_process(pid) is not None:
            os.kill(pid, 9)
    parent.wait()
    parent.stdout.close()


def test_a_tree_holds_children_in_other_sessions_parents_first(family: tuple[subprocess.Popen[str], int]) -> None:
    parent, child = family
    assert [process.pid for process in process_tree(parent.pid)] == [parent.pid, child]


def test_memory_and_cpu_time_of_a_tree_are_positive(family: tuple[subprocess.Popen[str], int]) -> None:
    tree = process_tree(family[0].pid)
    assert pss_bytes(tree) > pss_bytes(tree[:1]) > 1_000_000
    assert cpu_seconds(tree) >= 0


def test_stop_ends_the_whole_tree_and_nothing_else(family: tuple[subprocess.Popen[str], int]) -> None:
    parent, child = family
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        stop_tree(parent.pid, grace_s=0.3)
        parent.wait(timeout=5)
        for _ in range(50):
            left = read_process(child)
            if left is None or left.state == "Z":
                break
            time.sleep(0.1)
        assert left is None or left.state == "Z"
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_process_that_does_not_exist_has_no_tree() -> None:
    assert read_process(2**22 + 1) is None
    assert process_tree(2**22 + 1) == []
