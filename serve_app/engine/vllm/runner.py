"""Which of vLLM's two model runners a chain entry runs on. Pure; imports no vLLM."""

from __future__ import annotations

from typing import Final

from router.registry import ONLY_ON_V1, ChainEntry, Runner

RUNNER_VARIABLE: Final = "VLLM_USE_V2_MODEL_RUNNER"
"""vLLM reads it when it makes its config and again in each of its processes, so the replica sets it before."""


def runner_for(entry: ChainEntry, on_gpu: bool) -> Runner:
    """Return the model runner of an entry: its own choice, else V2 on GPUs unless its speculation needs V1."""
    if entry.runner is not None:
        return entry.runner
    speculation = entry.speculation
    if not on_gpu or (speculation is not None and speculation.method in ONLY_ON_V1):
        return "v1"
    return "v2"


def runner_environment(runner: Runner) -> dict[str, str]:
    """Return what the environment of vLLM's processes must hold for the runner."""
    return {RUNNER_VARIABLE: "1" if runner == "v2" else "0"}
