"""NVIDIA's platform of vLLM without a GPU: what vLLM's config resolution asks of the card is answered here.

For a process of its own, before anything of vLLM is imported: a platform is chosen once in a process. vLLM's CPU build
has the Python files of its CUDA build, but not its compiled modules; FlashAttention counts as there.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def pretend(capability: tuple[int, int], memory_gib: float, cards: int) -> None:
    """Have vLLM see cards of this compute capability and memory in this process.

    Args:
        capability: major and minor, for example (8, 9).
        memory_gib: of each card.
        cards: how many.
    """
    sys.modules["vllm._C_stable_libtorch"] = ModuleType("vllm._C_stable_libtorch")
    import vllm.platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    class FakeCuda(NonNvmlCudaPlatform):
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return DeviceCapability(*capability)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return f"card of compute capability {capability[0]}.{capability[1]}"

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return int(memory_gib * 2**30)

        @classmethod
        def device_count(cls) -> int:
            return cards

    vllm.platforms._current_platform = FakeCuda()
