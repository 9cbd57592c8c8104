"""Environment variables of an engine process with vLLM's CPU build."""

from __future__ import annotations

import os
from pathlib import Path


def cpu_environment(prefix: Path) -> dict[str, str]:
    """Return the environment of a CPU engine's processes.

    `VLLM_ENABLE_V1_MULTIPROCESSING=0` lets a chain entry use the executor `uni`: the worker runs in the EngineCore
    process, which starts sooner, uses less memory and answers faster (docs/decisions has the figures). The `KMP_`
    variables are those that vLLM sets for a separate worker process. Without `OMP_NUM_THREADS`, Ray would give OpenMP
    one thread in a replica that requests less than one CPU. As in vLLM, all cores but one compute, and one is left to
    the servers. Numba, which looks n-grams up, would else set OpenMP to a thread for each core: its threads wait for
    each other in every operation, so steps took ten times as long as soon as another process wanted a core.
    """
    threads = str(max(1, len(os.sched_getaffinity(0)) - 1))
    environment = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "KMP_BLOCKTIME": "5",
        "KMP_TPAUSE": "0",
        "OMP_NUM_THREADS": threads,
        "NUMBA_NUM_THREADS": threads,
    }
    library = prefix / "lib" / "libiomp5.so"  # vLLM needs Intel's OpenMP loaded before anything else
    return environment | ({"LD_PRELOAD": str(library)} if library.exists() else {})
