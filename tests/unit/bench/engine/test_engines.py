"""An engine that does not answer in time is ended with its processes, which would keep a GPU's memory."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from bench.engine.engines import Ask, EngineGoneError, EngineProcess
from bench.load.processes import is_alive

SILENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=subprocess.DEVNULL)
print(child.pid, file=sys.stderr, flush=True)
sys.stdin.read()
"""


def test_an_engine_that_is_silent_for_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as file:
        command = [sys.executable, "-c", SILENT]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True)
    while not log.read_text().strip():
        time.sleep(0.02)
    child = psutil.Process(int(log.read_text()))
    with pytest.raises(EngineGoneError, match=str(child.pid)):  # the end of its log
        EngineProcess(process, log).ask([Ask("?")], timeout_s=0.1)
    deadline_s = time.monotonic() + 30
    while (is_alive(child) or process.poll() is None) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not is_alive(child)
    assert process.poll() is not None
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.close()
    with suppress(BrokenPipeError):
        process.stdin.close()
