"""What vLLM's CPU build needs to run its V2 model runner; `install` must come before vLLM or Triton is imported."""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def install() -> None:
    """Have vLLM use V2, Triton's interpreter and one process, and schedule asynchronously if told to.

    Raises:
        RuntimeError: too late.
    """
    if early := sorted({"vllm", "triton"} & sys.modules.keys()):
        raise RuntimeError(f"{early} was imported before the shim")
    os.environ |= {
        "TRITON_INTERPRET": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    sys.meta_path.insert(0, _After("triton.backends", _add_cpu_backend))
    sys.meta_path.insert(0, _After("triton.runtime.interpreter", _take_any_mask))
    sys.meta_path.insert(0, _After("vllm.platforms.cpu", _keep_asynchronous_scheduling))


class _After(importlib.abc.MetaPathFinder):
    """Calls `hook(module)` once, right after the module was executed."""

    def __init__(self, name: str, hook: Callable[[Any], None]) -> None:
        self._name, self._hook = name, hook

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See importlib."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._hook(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _add_cpu_backend(module: Any) -> None:
    """Have vLLM see a Triton driver; Triton itself never chooses it."""

    class CpuDriver:
        @classmethod
        def is_active(cls) -> bool:
            return False

    module.backends["cpu"] = module.Backend(compiler=None, driver=CpuDriver)


def _take_any_mask(module: Any) -> None:
    """Turn masks into numpy's bool: the interpreter's int1 sometimes is not, and its loads and stores insist on it."""
    builder = module.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store

    def as_bool(mask: Any) -> Any:
        return mask if mask.data.dtype == bool else module.TensorHandle(mask.data.astype(bool), module.tl.int1)

    builder.create_masked_load = lambda self, pointers, mask, *rest: load(self, pointers, as_bool(mask), *rest)
    builder.create_masked_store = lambda self, pointers, value, mask, *rest: store(
        self, pointers, value, as_bool(mask), *rest
    )


def _keep_asynchronous_scheduling(module: Any) -> None:
    """Keep what was asked.

    vLLM's CPU platform turns it off, also when the config of a draft model is made from the engine's, which it shares.
    """
    update = module.CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        wanted = vllm_config.scheduler_config.async_scheduling
        update(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = wanted

    module.CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
