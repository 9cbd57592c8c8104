"""An engine on CPUs computes with as many threads as it was given, whichever library runs in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.cpu_environment import cpu_environment

LOOK_UP: str = """
import numpy
import torch
from numba import njit, prange


@njit(parallel=True)
def look_up(values):
    for place in prange(len(values)):
        values[place] += 1


look_up(numpy.zeros(8))
print(torch.get_num_threads())
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="with one core there is one thread in any case")
def test_a_parallel_lookup_in_numba_leaves_torch_its_threads() -> None:
    environment = cpu_environment(Path(sys.prefix))
    run = subprocess.run(
        [sys.executable, "-c", LOOK_UP], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == [environment["OMP_NUM_THREADS"]]
