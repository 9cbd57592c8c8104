"""Billed joules and idle joules add up to the growth of the counters, however many engines share a card."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from serve_app.engine.energy.counters import CardReading, CounterError
from serve_app.engine.energy.meter import EnergyMeter, Share
from sustainability.measured import Energy

IDLE_W, LIMIT_W, STEP_S = 60.0, 400.0, 0.1


@dataclass
class Engine:
    """An engine that works now and then, and bills what it did."""

    meter: EnergyMeter
    cards: tuple[str, ...]
    chance: random.Random
    reads_at: int
    """Step of each second in which it reads its counters."""
    alive: bool = True
    working: bool = False
    busy_s: float = 0.0
    up_s: float = 0.0
    owed_s: float = 0.0
    bills: list[tuple[float, Energy]] = field(default_factory=list)
    paid_idle_s: float = 0.0

    def end_answer(self) -> None:
        idle_s = self.up_s - self.busy_s - self.paid_idle_s
        self.paid_idle_s += idle_s
        self.bills.append((self.owed_s, self.meter.bill(self.owed_s, idle_s, self.busy_s)))
        self.owed_s = 0.0

    @property
    def measured_j(self) -> float:
        return sum(bill.busy_j for _, bill in self.bills if bill.busy_j is not None)


class World:
    """Cards with counters, and engines on them, in virtual time."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.folder = folder
        self.now_s = 1000.0
        self.counters: dict[str, float] = {}
        self.grown: dict[str, float] = {}
        self.broken: str | None = None
        self.engines: list[Engine] = []
        self.chance = random.Random(seed)

    def add(self, name: str, *cards: str, part: float = 1.0) -> Engine:
        for card in cards:
            self.counters.setdefault(card, 12345.0)
            self.grown.setdefault(card, 0.0)
        meter = EnergyMeter(
            Share(name, part, 50.0), lambda: _Counters(self, cards), self.folder, clock=lambda: self.now_s
        )
        engine = Engine(meter, cards, random.Random(f"{name}{self.chance.random()}"), len(self.engines) * 3 % 10)
        self.engines.append(engine)
        return engine

    def run(self, seconds: float) -> None:
        for step in range(round(seconds / STEP_S)):
            self.now_s += STEP_S
            for card in self.counters:
                watts = [200 + 100 * each.chance.random() for each in self.on(card) if each.working]
                joules = STEP_S * min(LIMIT_W, max(watts, default=IDLE_W))
                self.counters[card] += joules
                self.grown[card] += joules
            for engine in self.engines:
                if engine.alive:
                    self._step(engine, step)

    def on(self, card: str) -> list[Engine]:
        return [each for each in self.engines if each.alive and card in each.cards]

    def _step(self, engine: Engine, step: int) -> None:
        engine.up_s += STEP_S
        if engine.working:
            engine.busy_s += STEP_S
            engine.owed_s += STEP_S
            if engine.chance.random() < 0.1:
                engine.working = False
                engine.end_answer()
        elif engine.chance.random() < 0.1:
            engine.working = True
        if step % 10 == engine.reads_at:
            measure(engine)


@dataclass
class _Counters:
    world: World
    cards: Sequence[str]

    def __post_init__(self) -> None:
        self.read()

    def read(self) -> list[CardReading]:
        if self.world.broken is not None:
            raise CounterError(self.world.broken)
        return [CardReading(card, self.world.counters[card], LIMIT_W) for card in self.cards]


def measure(engine: Engine) -> None:
    engine.meter.take(engine.meter.read(engine.busy_s), engine.busy_s, 0.0)


def drawn(engine: Engine) -> dict[str, float]:
    joules = engine.meter.joules
    assert joules is not None
    return joules


def check_conserved(world: World, engines: Sequence[Engine], grown_j: float) -> None:
    """Billed by measurement, set aside, idle, and not billed yet: together what the counters grew by."""
    total_j = 0.0
    for engine in engines:
        ledger = engine.meter.ledger
        assert engine.measured_j == pytest.approx(ledger.billed_j)
        assert ledger.billed_j + ledger.aside_j + ledger.owed_j == pytest.approx(drawn(engine)["busy"])
        assert abs(ledger.owed_j) < 0.01 * drawn(engine)["busy"] + 5 * LIMIT_W  # the last seconds
        total_j += ledger.billed_j + ledger.aside_j + max(0.0, ledger.owed_j) + drawn(engine)["idle"]
    assert total_j == pytest.approx(grown_j, rel=0.01)


def test_one_engine_bills_what_its_cards_counter_grew_by(tmp_path: Path) -> None:
    world = World(tmp_path)
    engine = world.add("a", "GPU-1")
    world.run(1200)
    check_conserved(world, [engine], world.grown["GPU-1"])
    measured = [bill for _, bill in engine.bills if bill.busy_j is not None]
    assert len(measured) > 0.95 * len(engine.bills)
    assert drawn(engine)["idle"] == pytest.approx(IDLE_W * (engine.up_s - engine.busy_s), rel=0.05)
    assert engine.meter.watts.active == pytest.approx(250, rel=0.05)
    assert engine.meter.watts.idle == pytest.approx(IDLE_W, rel=0.05)


def test_two_engines_on_one_card_bill_its_joules_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    one, other = world.add("a", "GPU-1", part=0.3), world.add("b", "GPU-1", part=0.7)
    world.run(1200)
    check_conserved(world, [one, other], world.grown["GPU-1"])
    per_busy_s = [drawn(each)["busy"] / each.busy_s for each in (one, other)]
    assert per_busy_s[0] == pytest.approx(per_busy_s[1], rel=0.1)  # who works alone more often pays more for a second
    assert drawn(one)["idle"] / drawn(other)["idle"] == pytest.approx(3 / 7, rel=0.01)


def test_an_engine_over_two_cards_bills_both(tmp_path: Path) -> None:
    world = World(tmp_path)
    engine = world.add("a", "GPU-1", "GPU-2")
    world.run(600)
    check_conserved(world, [engine], world.grown["GPU-1"] + world.grown["GPU-2"])
    assert engine.meter.watts.active == pytest.approx(500, rel=0.05)


def test_a_counter_that_is_set_back_loses_less_than_a_second(tmp_path: Path) -> None:
    world = World(tmp_path)
    engine = world.add("a", "GPU-1")
    world.run(300.05)
    world.counters["GPU-1"] = 0.0
    world.run(900)
    check_conserved(world, [engine], world.grown["GPU-1"])


def test_the_other_engine_is_not_charged_for_one_that_died(tmp_path: Path) -> None:
    world = World(tmp_path)
    one, other = world.add("a", "GPU-1", part=0.5), world.add("b", "GPU-1", part=0.5)
    world.run(600)
    before_j = world.grown["GPU-1"]
    check_conserved(world, [one, other], before_j)
    one_j = sum(drawn(one).values())
    one.alive = False  # without a word
    world.run(600)
    after_j = sum(drawn(one).values())
    assert after_j == one_j
    assert sum(drawn(other).values()) + one_j == pytest.approx(world.grown["GPU-1"], rel=0.01)
    last_j = [bill.busy_j / busy_s for busy_s, bill in other.bills[-50:] if bill.busy_j is not None]
    assert max(last_j) < LIMIT_W * 1.05


def test_while_counters_cannot_be_read_answers_are_modelled_with_the_reason(tmp_path: Path) -> None:
    world = World(tmp_path)
    engine = world.add("a", "GPU-1")
    world.run(300)
    world.broken = "NVML: GPU is lost"
    world.run(1)
    before = len(engine.bills)
    gap_j = -world.grown["GPU-1"]
    world.run(100)
    gap_j += world.grown["GPU-1"]
    unread = [bill for _, bill in engine.bills[before:]]
    assert unread
    assert all(bill == Energy(reason="NVML: GPU is lost") for bill in unread)
    assert engine.meter.joules is None
    assert engine.meter.watts.reason == "NVML: GPU is lost"
    world.broken = None
    world.run(2)
    again = len(engine.bills)
    world.run(600)
    later = [bill for _, bill in engine.bills[again:]]
    assert all(bill.busy_j is not None for bill in later)
    watts = [bill.busy_j / busy_s for busy_s, bill in engine.bills[again:] if bill.busy_j is not None]
    assert max(watts) < LIMIT_W, "nobody pays for what was drawn while nothing could be read"
    assert sum(drawn(engine).values()) == pytest.approx(world.grown["GPU-1"] - gap_j, rel=0.01)


def test_until_a_second_of_work_was_measured_answers_say_so(tmp_path: Path) -> None:
    world = World(tmp_path)
    engine = world.add("a", "GPU-1")
    assert engine.meter.bill(0.1, 0.0, 0.1).reason == "nothing was read yet"
    engine.busy_s = 0.2
    measure(engine)
    assert engine.meter.bill(0.1, 0.0, 0.3).reason == "less than 1 s of work was measured yet"


def test_equal_answers_pay_the_same_one_after_the_other(tmp_path: Path) -> None:
    """An answer of 0.7 s every 1.3 s, so that readings cut it at many places; the card draws 300 W or 60 W."""
    world = World(tmp_path)
    engine = world.add("a", "GPU-1")
    bills = []
    for step in range(6000):
        world.now_s += STEP_S
        working = step >= 30 and step % 13 < 7  # at first it rests, which shows the idle watts
        world.counters["GPU-1"] += STEP_S * (300 if working else IDLE_W)
        engine.busy_s += STEP_S * working
        if working and step % 13 == 6:
            bills.append(engine.meter.bill(0.7, 0.6, engine.busy_s).busy_j)
        if step % 10 == 0:
            measure(engine)
    late = [bill for bill in bills[100:] if bill is not None]
    assert len(late) == len(bills) - 100
    assert (max(late) - min(late)) / (sum(late) / len(late)) < 0.02
    assert sum(late) / len(late) == pytest.approx(210, rel=0.01)


def test_an_engine_that_stops_lets_the_others_go_on_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    one, other = world.add("a", "GPU-1", part=0.5), world.add("b", "GPU-1", part=0.5)
    world.run(60)
    one.alive = False
    one.meter.leave()
    before_j = sum(drawn(other).values())
    grown_j = -world.grown["GPU-1"]
    world.run(10)
    grown_j += world.grown["GPU-1"]
    assert sum(drawn(other).values()) - before_j == pytest.approx(grown_j, rel=0.2)


@pytest.mark.parametrize(("busy_s", "pause_s"), [(0.05, 3.0), (0.05, 0.5), (0.5, 3.0), (0.5, 0.2)])
def test_short_answers_are_billed_right_by_a_counter_that_moves_ten_times_a_second(
    tmp_path: Path, busy_s: float, pause_s: float
) -> None:
    """300 W while it works and 60 W while it rests, in steps of 10 ms; answers come at random."""
    chance = random.Random(1)
    world = World(tmp_path)
    engine = world.add("a", "GPU-1")
    drawn_j = world.counters["GPU-1"]
    starts, ends = 200, 0
    owed_s, watts = 0.0, []
    for step in range(100_000):
        world.now_s += 0.01
        if step == starts:
            ends = step + round(100 * busy_s)
            starts = ends + 1 + round(100 * chance.expovariate(1 / pause_s))
        working = step < ends
        drawn_j += 0.01 * (300 if working else IDLE_W)
        if working:
            engine.busy_s += 0.01
            owed_s += 0.01
        elif owed_s:
            bill = engine.meter.bill(owed_s, 0.0, engine.busy_s)
            watts.append(None if bill.busy_j is None else bill.busy_j / owed_s)
            owed_s = 0.0
        if step % 10 == 3:
            world.counters["GPU-1"] = drawn_j
        if step % 100 == 77:
            measure(engine)
    late = [each for each in watts[len(watts) // 3 :] if each is not None]
    assert len(late) > 0.6 * len(watts)
    assert sum(late) / len(late) == pytest.approx(300, rel=0.03)
    assert min(late) > 0.9 * 300
    assert max(late) < 1.1 * 300
