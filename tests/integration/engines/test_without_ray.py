"""Engines and the kit run where Ray is not installed."""

import subprocess
import sys

from bench.reporting.report import REPOSITORY

BLOCKED = """
import sys
sys.modules["ray"] = None  # importing it is an ImportError
import bench.gpu, bench.engine.host
print("imported")
"""


def test_what_runs_an_engine_imports_no_ray() -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKED], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("imported\n"), done.stderr[-3000:]
