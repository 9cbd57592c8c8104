"""What a real engine's answers are billed of its busy time, and of the energy that it measures: vLLM's binding of NVML,
on a stub of the driver's library.

The stub's card draws 200 W all the time. So what an answer is billed is known: 200 W times its share of the busy time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from bench.energy import equal, restless, spread, unbilled
from bench.engine.engines import Ask, Batch, EngineProcess, engine_process
from cluster.profiles.reading import load_profile
from tests.support.e2e_app import MODEL
from tests.support.nvml import NvmlStub, StubCard

WATTS: Final = 200.0
CARD: Final = StubCard("GPU-stub-of-test-energy", 7_000, power_mw=200_000)


class Measured(NamedTuple):
    engine: EngineProcess
    library: NvmlStub


@pytest.fixture(scope="module")
def measured(bundled_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    """eco of the shipped local profile, which has learned what steps of many sizes cost."""
    folder = tmp_path_factory.mktemp("energy")
    library = NvmlStub.built(folder)
    library.show(CARD)
    profile = load_profile("local")
    tier = profile.tiers["eco"]
    with engine_process(
        profile.entry("eco", None),
        tier,
        {MODEL: bundled_model},
        folder / "log",
        environment=library.environment,
        measures_energy=True,
    ) as engine:
        engine.ask([Ask("Tell me a story.", max_tokens=40)] * 6)
        yield Measured(engine, library)


def found_again(batch: Batch) -> float:
    """What was billed, set aside, idle and not billed yet, over the growth of the counter."""
    energy = batch.energy
    assert energy is not None
    assert energy.reason is None
    return (energy.billed_j + energy.aside_j + energy.owed_j + energy.idle_j) / energy.counter_j


def test_bills_and_idle_joules_add_up_to_the_counter_and_shares_to_the_busy_time(measured: Measured) -> None:
    """With prompts in pieces, drafts, stop strings and clients that leave."""
    batch = measured.engine.ask(restless(4), at_once=4)

    assert unbilled(batch) < 0.01
    assert 0.9 < batch.busy.busy_s / batch.seconds <= 1.01
    assert all(reply.busy_s > 0 for reply in batch.replies)
    assert batch.energy is not None
    assert batch.energy.counter_j == pytest.approx(WATTS * batch.seconds, rel=0.05)
    assert found_again(batch) == pytest.approx(1, abs=0.01)
    whole = [reply for reply in batch.replies if reply.finish_reason != "left"]
    assert len(whole) < len(batch.replies)
    assert sum(reply.busy_j or 0.0 for reply in whole) == pytest.approx(batch.energy.billed_j)
    assert batch.energy.idle_j < 0.1 * batch.energy.counter_j


def test_equal_requests_pay_the_same_the_power_of_the_card_for_their_share(measured: Measured) -> None:
    batch = measured.engine.ask(equal(8), one_step=True)
    assert spread(batch) < 0.02
    for reply in batch.replies:
        assert reply.busy_j == pytest.approx(WATTS * reply.busy_s, rel=0.05)


def test_while_the_card_cannot_be_read_answers_are_billed_by_the_model(measured: Measured) -> None:
    measured.library.show(StubCard(CARD.uuid, 7_000, code=15))
    lost = measured.engine.ask([Ask("Tell me a story.", max_tokens=32)])
    measured.library.show(CARD)
    measured.engine.ask([Ask("Tell me a story.", max_tokens=32)])
    again = measured.engine.ask([Ask("Tell me a story.", max_tokens=32)])

    assert lost.energy is not None
    assert lost.energy.reason == "NVML: GPU is lost"
    assert lost.replies[0].busy_j is None
    assert again.replies[0].busy_j == pytest.approx(WATTS * again.replies[0].busy_s, rel=0.05)
