"""The GPUs of this machine, as a Ray that is started on it offers them."""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from typing import Any, Final

from ray._private.ray_constants import RESOURCES_ENVIRONMENT_VARIABLE
from ray._private.resource_and_label_spec import ResourceAndLabelSpec
from ray._private.thirdparty import pynvml

_A100: Final = "accelerator_type:A100"
_BETWEEN: Final = 60 * 2**30
"""Bytes of memory between those of the two A100s."""


def resources(environ: MutableMapping[str, str]) -> dict[str, Any]:
    """Return the resources of a Ray node that is started here."""
    name_a100(environ)
    return dict(ResourceAndLabelSpec().resolve(is_head=True).to_resource_dict())


def name_a100(environ: MutableMapping[str, str]) -> None:
    """Have a Ray that this process starts offer `A100-80G` or `A100-40G` too: Ray itself says `A100` for both."""
    if RESOURCES_ENVIRONMENT_VARIABLE in environ:
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return
    try:
        if pynvml.nvmlDeviceGetCount():
            card = pynvml.nvmlDeviceGetHandleByIndex(0)
            name = pynvml.nvmlDeviceGetName(card)
            if "A100" in (name.decode() if isinstance(name, bytes) else name):
                size = 80 if pynvml.nvmlDeviceGetMemoryInfo(card).total > _BETWEEN else 40
                environ[RESOURCES_ENVIRONMENT_VARIABLE] = json.dumps({f"{_A100}-{size}G": 1})
    finally:
        pynvml.nvmlShutdown()
