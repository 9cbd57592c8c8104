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


METER = """
import json, sys
from pathlib import Path
from serve_app.engine.energy.meter import EnergyMeter, Share
from serve_app.engine.vllm.nvml import NvmlCounters
name, folder = sys.argv[1:]
clock = [0.0]
meter = EnergyMeter(Share(name, 0.5, 60.0), lambda: NvmlCounters(0.5, {"CUDA_VISIBLE_DEVICES": "0"}), Path(folder),
                    clock=lambda: clock[0])
for line in sys.stdin:
    clock[0], busy_s, answer_s = json.loads(line)
    meter.take(meter.read(busy_s), busy_s, 0.0)
    bill = meter.bill(answer_s, 0.0, busy_s)
    print(json.dumps([bill.busy_j, bill.reason, meter.joules, meter.ledger.aside_j, meter.ledger.owed_j]), flush=True)
"""


class MeterProcess:
    """An engine's process, as far as its energy goes: it reads and bills an answer when it is told what it did."""

    def __init__(self, name: str, library: NvmlStub, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", METER, name, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env=os.environ | library.environment,
        )
        self.busy_s = 0.0
        self.billed_j = self.aside_j = self.owed_j = self.idle_j = 0.0

    def works(self, now_s: float, busy_s: float) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.busy_s += busy_s
        self._process.stdin.write(json.dumps([now_s, self.busy_s, busy_s]) + "\n")
        self._process.stdin.flush()
        busy_j, reason, joules, self.aside_j, self.owed_j = json.loads(self._process.stdout.readline())
        assert (busy_j is None) == (reason is not None)
        self.billed_j += busy_j or 0.0
        self.idle_j = joules["idle"]

    @property
    def all_j(self) -> float:
        return self.billed_j + self.aside_j + self.owed_j + self.idle_j

    def dies(self) -> None:
        self._process.kill()
        self._process.communicate()


def test_two_processes_on_one_card_bill_its_counter_once_and_one_goes_on_when_the_other_has_died(
    tmp_path: Path,
) -> None:
    """300 W while any of them works, else 60 W; by the real binding, in virtual time."""
    library = NvmlStub.built(tmp_path)
    grown_mj = 0
    library.show(StubCard("GPU-1aa", 1_000_000))
    one, other = (MeterProcess(name, library, tmp_path / "shared") for name in ("one", "other"))
    try:
        for second in range(100):
            # The first works in 2 of 3 seconds, the other in every second one.
            work = (0.0 if second % 3 == 2 else 1.0, float(second % 2))
            grown_mj += 300_000 if any(work) else 60_000
            library.show(StubCard("GPU-1aa", 1_000_000 + grown_mj))
            for process, busy_s in zip((one, other), work, strict=True):
                process.works(100.0 + second, busy_s)
        since_mj = grown_mj - 300_000  # they joined in the first second, which is nobody's
        assert one.all_j + other.all_j == pytest.approx(since_mj / 1000, rel=0.01)
        assert one.billed_j / one.busy_s == pytest.approx(other.billed_j / other.busy_s, rel=0.15)

        other.dies()
        before_j, grown_before_mj = one.all_j, grown_mj
        for second in range(100, 200):
            busy_s = 0.0 if second % 3 == 2 else 1.0
            grown_mj += 300_000 if busy_s else 60_000
            library.show(StubCard("GPU-1aa", 1_000_000 + grown_mj))
            one.works(100.0 + second, busy_s)
        alone_j, grown_j = one.all_j - before_j, (grown_mj - grown_before_mj) / 1000
        assert 0.95 * grown_j < alone_j < grown_j  # of 5 s half is the other's, which is taken to have gone on
    finally:
        for process in (one, other):
            process.dies()
