"""vLLM's binding of NVML on a stub of the driver's library: which cards are read, and what they show.

Each case is a process of its own, as the binding loads the library once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.reporting.report import REPOSITORY
from tests.support.nvml import NvmlStub, StubCard

ONE, TWO = StubCard("GPU-1aa", 5_000), StubCard("GPU-2bb", 70_500, limit_mw=0, mig=-1)
SCRIPT = """
import json, os, sys
from serve_app.engine.energy.counters import CounterError
from serve_app.engine.vllm.nvml import NvmlCounters
for line in sys.stdin:
    gpus, environment = json.loads(line)
    try:
        readings = NvmlCounters(gpus, environment).read()
        answer = [[each.card, each.counter_j, each.limit_watts] for each in readings]
    except CounterError as error:
        answer = error.reason
        log = str(error)
        assert log.startswith(answer)
        assert 'GPU-' not in answer
    print(json.dumps(answer), flush=True)
"""


class Reader:
    """A process that reads the stub."""

    def __init__(self, library: NvmlStub) -> None:
        self.library = library
        self._process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env=os.environ | library.environment,
        )

    def read(self, gpus: float, environment: Mapping[str, str]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([gpus, dict(environment)]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Any:
    reader = Reader(NvmlStub.built(tmp_path_factory.mktemp("nvml")))
    reader.library.show(ONE, TWO)
    yield reader
    reader.close()


def visible(cards: str | None, **more: str) -> dict[str, str]:
    return ({} if cards is None else {"CUDA_VISIBLE_DEVICES": cards}) | more


FIRST, SECOND = ["GPU-1aa", 5.0, 700.0], ["GPU-2bb", 70.5, None]


@pytest.mark.parametrize(
    ("gpus", "cards", "expected"),
    [
        (1, "0", [FIRST]),
        (1, "1", [SECOND]),
        (0.4, "1", [SECOND]),
        (2, "1,0", [SECOND, FIRST]),
        (1, "GPU-2bb", [SECOND]),
        (1, "GPU-2", [SECOND]),
        (1, None, [FIRST]),
        (2, None, [FIRST, SECOND]),
    ],
)
def test_the_cards_that_the_replica_may_use_are_read(reader: Reader, gpus: float, cards: str, expected: Any) -> None:
    reader.library.show(ONE, TWO)
    assert reader.read(gpus, visible(cards)) == expected


@pytest.mark.parametrize(
    ("gpus", "cards", "reason"),
    [
        (1, "7", "the driver does not know the replica's card"),
        (1, "GPU-", "the driver does not know the replica's card"),
        (2, "0", "CUDA shows fewer cards than the replica has"),
        (1, "MIG-77", "the card is divided (MIG), and only whole cards have a counter"),
    ],
)
def test_a_card_that_is_not_there_is_a_reason(reader: Reader, gpus: float, cards: str, reason: str) -> None:
    reader.library.show(ONE, TWO)
    assert reader.read(gpus, visible(cards)) == reason


def test_numbers_of_cards_of_several_kinds_need_the_drivers_order(reader: Reader) -> None:
    reader.library.show(ONE, StubCard("GPU-2bb", 1000, name="NVIDIA-L4"))
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in reader.read(1, visible("1"))
    assert reader.read(1, visible("1", CUDA_DEVICE_ORDER="PCI_BUS_ID")) == [["GPU-2bb", 1.0, 700.0]]
    assert reader.read(1, visible("GPU-2bb")) == [["GPU-2bb", 1.0, 700.0]]


def test_a_divided_card_an_old_card_and_a_lost_one_say_why_they_are_not_measured(reader: Reader) -> None:
    for card, reason in (
        (StubCard("GPU-1aa", 1, mig=1), "the card is divided (MIG), and only whole cards have a counter"),
        (StubCard("GPU-1aa", 1, code=3), "the card has no energy counter"),
        (StubCard("GPU-1aa", 1, code=15), "NVML: GPU is lost"),
    ):
        reader.library.show(card)
        assert reader.read(1, visible("0")) == reason


def test_a_machine_without_a_driver_says_so(reader: Reader) -> None:
    reader.library.write("no driver\n")
    assert reader.read(1, visible("0")) == "NVML: Driver Not Loaded"


def test_a_machine_without_the_library_says_so(tmp_path: Path) -> None:
    without = Reader(NvmlStub(tmp_path))
    try:
        assert without.read(1, visible("0")) == "NVML: NVML Shared Library Not Found"
    finally:
        without.close()
