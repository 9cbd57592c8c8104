"""The energy counters of NVIDIA's cards, by NVML: the binding that vLLM ships, which talks to the driver's library.

nvmlDeviceGetTotalEnergyConsumption: mJ since the driver was loaded, of Volta cards and newer
(docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html). It counts the whole board.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, Final

from vllm.third_party import pynvml

from serve_app.engine.energy.counters import CardReading, CounterError

_J_PER_MJ: Final = 1 / 1000
_W_PER_MW: Final = 1 / 1000
_MIG: Final = "the card is divided (MIG), and only whole cards have a counter"


class NvmlCounters:
    """Counters of the cards that a process may use.

    Args:
        gpus: of the replica; below 1: its share of one card.
        environment: names the cards (`CUDA_VISIBLE_DEVICES`).

    Raises:
        CounterError: there is no driver, no such card, or none of its energy alone.
    """

    def __init__(self, gpus: float, environment: Mapping[str, str] = os.environ) -> None:
        try:
            pynvml.nvmlInit()
            cards = visible_cards(ceil(gpus), environment)
            for uuid, handle in cards.items():
                check_card(uuid, handle)
            self._cards = {uuid: (handle, limit_watts(handle)) for uuid, handle in cards.items()}
            self.read()
        except pynvml.NVMLError as error:
            raise CounterError(f"NVML: {error}") from error

    def read(self) -> Sequence[CardReading]:
        """See `Counters.read`."""
        readings = []
        for uuid, (handle, limit) in self._cards.items():
            try:
                counter_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
            except pynvml.NVMLError_NotSupported as error:
                raise CounterError("the card has no energy counter", uuid) from error
            except pynvml.NVMLError as error:
                raise CounterError(f"NVML: {error}") from error
            readings.append(CardReading(uuid, counter_mj * _J_PER_MJ, limit))
        return readings


def visible_cards(count: int, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the first `count` cards that CUDA shows a process, by UUID.

    CUDA numbers cards by speed unless it is told otherwise, NVML by their places; so where cards of several kinds are
    numbered it is not known which is meant.

    Raises:
        CounterError: there is no such card, or it is not known which.
        NVMLError: by the library.
    """
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    uuids = [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    named = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    names = named or [str(index) for index in range(count)]
    if len(names) < count:
        raise CounterError("CUDA shows fewer cards than the replica has", f"{names}, it has {count}")
    found: dict[str, Any] = {}
    for name in names[:count]:
        if name.startswith("MIG-"):
            raise CounterError(_MIG, name)
        if name.isdecimal():
            kinds = {str(pynvml.nvmlDeviceGetName(handle)) for handle in handles}
            if len(kinds) > 1 and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
                raise CounterError("cards of several kinds are numbered by speed: set CUDA_DEVICE_ORDER=PCI_BUS_ID")
            places = [int(name)] if int(name) < len(handles) else []
        else:
            # CUDA takes the beginning of a UUID, too.
            places = [place for place, uuid in enumerate(uuids) if uuid.startswith(name)]
        if len(places) != 1:
            raise CounterError("the driver does not know the replica's card", f"{name!r}, it has {uuids}")
        found[uuids[places[0]]] = handles[places[0]]
    return found


def check_card(uuid: str, handle: Any) -> None:
    """Check that a card is used as a whole.

    Raises:
        CounterError: it is divided by MIG.
        NVMLError: by the library.
    """
    try:
        mode, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError_NotSupported:
        return
    if mode:
        raise CounterError(_MIG, uuid)


def limit_watts(handle: Any) -> float | None:
    """Return a card's power limit, W; None: it has none."""
    try:
        return float(pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) * _W_PER_MW)
    except pynvml.NVMLError_NotSupported:
        return None
