"""NVIDIA's platform of vLLM without a GPU: what vLLM's config resolution asks of the card is answered here.

For a process of its own, before anything of vLLM is imported: a platform is chosen once in a process. vLLM's CPU build
has the Python files of its CUDA build, but not its compiled modules; FlashAttention counts as there.

    card = pretend(memory_gib=80, cards=8)
    import vllm.engine.arg_utils
    if os.fork() == 0:
        card.capability = (8, 9)

What vLLM asks of a card it keeps, so another one needs another process. Importing takes most of the time, and most of
vLLM asks nothing of the card then (it would be an error here), so a process that has imported may be forked.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Final

_COMPILED: Final = (
    "vllm._C_stable_libtorch",
    "vllm.vllm_flash_attn._vllm_fa2_C",
    "vllm.vllm_flash_attn._vllm_fa3_C",
)


class Card:
    """The card that vLLM sees."""

    _capability: tuple[int, int] | None = None

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability, major and minor, for example (8, 9).

        Raises:
            RuntimeError: it was not set yet.
        """
        if self._capability is None:
            raise RuntimeError("vLLM asks for the card's compute capability before it was set")
        return self._capability

    @capability.setter
    def capability(self, capability: tuple[int, int]) -> None:
        if self._capability is not None:
            raise RuntimeError("vLLM keeps what it asked of the card: another card needs another process")
        self._capability = capability


def pretend(memory_gib: float, cards: int) -> Card:
    """Have vLLM see cards in this process; return what says which.

    Args:
        memory_gib: of each card.
        cards: how many.
    """
    for name in _COMPILED:
        sys.modules[name] = ModuleType(name)
    import vllm.platforms
    from triton.backends import backends  # type: ignore[import-untyped]

    # The CPU build looks for a Triton that compiles for CPUs; here is one for NVIDIA's, which nothing runs.
    vllm.platforms.vllm_version_matches_substr = lambda part: False
    backends["nvidia"].driver.is_active = staticmethod(lambda: True)
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    card = Card()

    class FakeCuda(NonNvmlCudaPlatform):
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return DeviceCapability(*card.capability)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return f"card of compute capability {card.capability}"

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return int(memory_gib * 2**30)

        @classmethod
        def device_count(cls) -> int:
            return cards

        def get_global_graph_pool(self) -> Any:
            return (0, 1)

    vllm.platforms._current_platform = FakeCuda()
    _compiled_modules_say()
    return card


def _compiled_modules_say() -> None:
    """Answer what vLLM's compiled modules are asked while others are imported, after their source (csrc/)."""
    import torch

    library = torch.library.Library("_C", "FRAGMENT")
    _KEPT.append(library)
    for name, least in (
        ("cutlass_scaled_mm_supports_fp8", 89),
        ("cutlass_scaled_mm_supports_block_fp8", 90),
        ("cutlass_group_gemm_supported", 90),
    ):
        library.define(f"{name}(int cuda_device_capability) -> bool")
        library.impl(name, lambda capability, least=least: capability >= least, "CompositeImplicitAutograd")
    # Its passes match compiled operations. Nothing is compiled here.
    passes = ModuleType("vllm.compilation.passes.pass_manager")
    passes.PostGradPassManager = object  # type: ignore[attr-defined]
    sys.modules[passes.__name__] = passes


_KEPT: list[Any] = []
"""torch forgets a library's functions with the object."""
