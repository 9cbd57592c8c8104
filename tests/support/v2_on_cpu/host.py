"""The engine's process: takes calls from a pipe until it closes. Nothing here imports vLLM before the shim is in."""

from __future__ import annotations

import os
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.v2_on_cpu.engine import EngineSpec


def serve(spec: EngineSpec, pipe: Any) -> None:
    """Start the engine and answer calls; every answer is (error, value)."""
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        if spec.v2:
            from tests.support.v2_on_cpu import shim

            shim.install(asynchronous=spec.asynchronous)
        else:
            os.environ |= {"VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        from tests.support.v2_on_cpu.observed import ObservedEngine

        engine: ObservedEngine | None = ObservedEngine(spec)
        failure = ""
    except BaseException:  # noqa: BLE001 - the client gets it with its first call
        engine, failure = None, traceback.format_exc()
    while True:
        try:
            name, argument = pipe.recv()
        except EOFError:
            return
        if engine is None:
            pipe.send((failure, None))
            continue
        try:
            pipe.send(("", getattr(engine, name)(*([] if argument is None else [argument]))))
        except BaseException:  # noqa: BLE001 - see above
            pipe.send((traceback.format_exc(), None))
