"""The engines' process: takes calls from a pipe until it closes. Nothing here imports vLLM before the shim is in."""

from __future__ import annotations

import os
import traceback
from typing import Any


def serve(pipe: Any, *, v2: bool) -> None:
    """Answer calls of `Host`; every answer is (error, value).

    Args:
        pipe: to the client.
        v2: False: vLLM's V1 model runner, as shipped.
    """
    os.environ |= {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if v2:
        from tests.support.v2_on_cpu import shim

        shim.install()
    else:
        os.environ |= {"VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    from tests.support.v2_on_cpu.observed import ObservedEngine

    engine: ObservedEngine | None = None
    while True:
        try:
            name, *arguments = pipe.recv()
        except EOFError:
            os._exit(0)  # vLLM's threads would keep the process
        try:
            if name == "start":
                engine = ObservedEngine(*arguments)
                answer: Any = engine.info()
            elif name == "sample_with_drafts":
                from tests.support.v2_on_cpu.sampler import sample_with_drafts

                answer = sample_with_drafts(*arguments)
            elif name == "stop":
                if engine is not None:
                    engine.stop()
                engine = answer = None
            else:
                answer = getattr(engine, name)(*arguments)
            pipe.send(("", answer))
        except BaseException:  # noqa: BLE001 - the client raises it
            pipe.send((traceback.format_exc(), None))
