"""What vLLM's CPU build wants of its processes' environment."""

from __future__ import annotations

import os
from pathlib import Path


def cpu_environment(prefix: Path) -> dict[str, str]:
    """Environment of a CPU engine's processes.

    `VLLM_ENABLE_V1_MULTIPROCESSING=0` lets a step choose the executor `uni`: the worker then lives in EngineCore's
    process, which starts sooner, holds less and answers faster (docs/architecture.md has the figures). vLLM would
    otherwise set OpenMP's waiting for its worker process; here it is set as vLLM does. Ray would set OpenMP to one
    thread for a replica that asks for less than one CPU; as vLLM does, all cores but one compute, and one is left to
    the servers.
    """
    environment = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "KMP_BLOCKTIME": "5",
        "KMP_TPAUSE": "0",
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) - 1)),
    }
    library = prefix / "lib" / "libiomp5.so"  # vLLM wants Intel's OpenMP loaded before anything else
    return environment | ({"LD_PRELOAD": str(library)} if library.exists() else {})
