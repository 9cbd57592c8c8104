"""The record of speculation: flags of tokens, totals, and what is left when a request is gone."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.observation import Learned
from router.registry import Drafts
from serve_app.engine.interface import DraftCount, SpecStats
from serve_app.engine.vllm.step_record import (
    LEARNED_KEY,
    MOST_UNDER_WAY,
    RECORD_KEY,
    TOTALS_KEY,
    RequestRecord,
    SpecRecords,
    StepRecord,
    StepsUnderWay,
    StepUnderWay,
)
from sustainability.measured import Energy
from sustainability.shares import Totals


class Collector:
    """Stands for the collector that vLLM fills for a request."""


@dataclass
class Output:
    """Stands for vLLM's `EngineCoreOutput`."""

    new_token_ids: list[int] = field(default_factory=list)
    kv_transfer_params: dict[str, Any] | None = None
    request_id: str = "r"


def step(
    drafted: int, accepted: int, reason: str = "asked", category: str = "code", drafts: Drafts = "own"
) -> StepRecord:
    return StepRecord(drafted, accepted, reason, category, drafts)


def output(step: StepRecord, tokens: int | None = None) -> Output:
    """A step that gave its accepted drafts and the target's own token, or the given number of tokens."""
    count = step.accepted + 1 if tokens is None else tokens
    return Output(list(range(count)), {RECORD_KEY: step})


def flags_of(record: RequestRecord, tokens: int) -> list[bool]:
    """Of the next tokens, whether each is an accepted draft."""
    return [drafted.accepted for drafted in record.take_drafted(tokens)]


def test_each_token_knows_how_many_drafts_its_step_verified() -> None:
    record = RequestRecord()
    record.add(step(0, 0, ""), 1)
    record.add(step(5, 2), 3)
    record.add(step(3, 3), 2)  # cut

    assert [drafted.k for drafted in record.take_drafted(4)] == [0, 5, 5, 5]
    assert [drafted.k for drafted in record.take_drafted(3)] == [3, 3, 0]


def test_a_steps_accepted_drafts_come_before_the_targets_own_token() -> None:
    record = RequestRecord()
    record.add(step(0, 0, ""), 1)
    record.add(step(5, 2), 3)

    assert flags_of(record, 4) == [False, True, True, False]


@pytest.mark.parametrize(
    ("tokens", "flags"),
    [(1, [True]), (3, [True, True, True]), (4, [True, True, True, False])],
    ids=["among drafts", "after the last draft", "whole"],
)
def test_a_last_step_that_was_cut_flags_the_drafts_that_are_left(tokens: int, flags: list[bool]) -> None:
    record = RequestRecord()
    record.add(step(5, 3), tokens)

    assert flags_of(record, tokens) == flags
    assert record.stats().accepted_tokens == 3


def test_a_step_without_tokens_flags_nothing() -> None:
    record = RequestRecord()
    record.add(step(0, 0, ""), 0)
    record.add(step(1, 1), 2)

    assert flags_of(record, 2) == [True, False]


def test_tokens_of_no_recorded_step_are_no_drafts() -> None:
    record = RequestRecord()
    record.add(step(1, 1), 2)

    assert flags_of(record, 4) == [True, False, False, False]
    assert flags_of(record, 1) == [False]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.data())
def test_flags_do_not_depend_on_how_the_consumer_takes_tokens(accepted: list[int], data: st.DataObject) -> None:
    record, whole = RequestRecord(), RequestRecord()
    for count in accepted:
        record.add(step(5, count), count + 1)
        whole.add(step(5, count), count + 1)
    left = total = sum(accepted) + len(accepted)
    flags: list[bool] = []
    while left:
        taken = data.draw(st.integers(1, left))
        flags += flags_of(record, taken)
        left -= taken

    assert flags == flags_of(whole, total)
    assert sum(flags) == sum(accepted)


def test_a_request_adds_up_its_steps_by_reason_and_by_who_drafted() -> None:
    record = RequestRecord()
    for each in (
        step(0, 0, ""),
        step(5, 3, "auto"),
        step(0, 0, "auto"),
        step(4, 0, "probe", drafts="ngram"),
        step(3, 1, "auto", drafts="ngram"),
        step(0, 0, "auto_off")._replace(tau=0.25),
    ):
        record.add(each, each.accepted + 1)

    assert record.stats() == SpecStats(
        steps=3,
        draft_tokens=12,
        accepted_tokens=4,
        reasons={"auto": 3, "probe": 1, "auto_off": 1},
        stopped_by_tau=False,
        drafts={"own": DraftCount(5, 3), "ngram": DraftCount(7, 1)},
        tau=0.25,
        last_reason="auto_off",
    )


def test_a_step_that_tau_stopped_is_counted() -> None:
    record = RequestRecord()
    record.add(step(5, 0), 1)
    record.add(step(0, 0, "tau_stopped"), 1)

    assert record.stats().stopped_by_tau is True
    assert record.stats().reasons == {"asked": 1, "tau_stopped": 1}


def test_a_request_without_steps_has_no_reasons() -> None:
    assert RequestRecord().stats() == SpecStats()


def test_a_record_is_taken_off_the_output() -> None:
    records, collector = SpecRecords(), Collector()
    taken = output(step(5, 2))

    records.take(taken, collector)

    assert taken.kv_transfer_params is None
    assert records.of(collector).steps == [step(5, 2)]
    assert flags_of(records.of(collector), 3) == [True, True, False]


def test_a_record_that_lost_its_type_on_the_way_is_read() -> None:
    records, collector = SpecRecords(), Collector()

    records.take(Output([1], {RECORD_KEY: [5, 2, "asked", "code"]}), collector)

    assert records.of(collector).steps == [step(5, 2)]


def test_what_the_controller_has_learned_is_taken_off_too_and_the_newest_is_kept() -> None:
    records = SpecRecords()
    assert records.learned == Learned()
    for tau in (0.3, 0.4):
        taken = Output([1], {RECORD_KEY: step(0, 0), LEARNED_KEY: [{"code": tau}, "no_drafts", "too slow"]})
        records.take(taken, None)
        assert taken.kv_transfer_params is None
    records.take(output(step(0, 0)), None)

    assert records.learned == Learned({"code": 0.4}, "no_drafts", "too slow")


def test_other_data_on_the_output_stays() -> None:
    records = SpecRecords()
    taken = Output([1], {"remote_block_ids": [1, 2], RECORD_KEY: step(0, 0)})

    records.take(taken, Collector())

    assert taken.kv_transfer_params == {"remote_block_ids": [1, 2]}


@pytest.mark.parametrize("params", [None, {}, {"remote_block_ids": [1]}])
def test_an_engine_without_records_is_left_alone(params: dict[str, Any] | None) -> None:
    records, collector = SpecRecords(), Collector()
    taken = Output([1, 2], params)

    records.take(taken, collector)

    assert taken.kv_transfer_params is params
    assert records.categories == {}
    record = records.of(collector)
    assert flags_of(record, 2) == [False, False]
    assert record.stats() == SpecStats()


def test_requests_have_records_of_their_own() -> None:
    records, one, other = SpecRecords(), Collector(), Collector()
    records.take(output(step(5, 5)), one)
    records.take(output(step(2, 0)), other)
    records.take(output(step(5, 1)), one)

    assert records.of(one).steps == [step(5, 5), step(5, 1)]
    assert records.of(other).steps == [step(2, 0)]
    assert records.of(one) is records.of(one)


def test_totals_are_kept_by_category_over_all_requests() -> None:
    records, one, other = SpecRecords(), Collector(), Collector()
    records.take(output(step(5, 3, category="code")), one)
    records.take(output(step(4, 1, category="code")), other)
    records.take(output(step(3, 0, category="math")), one)

    assert records.categories == {"code": DraftCount(9, 4), "math": DraftCount(3, 0)}


def test_the_output_of_a_request_that_is_gone_still_counts_for_its_category() -> None:
    records = SpecRecords()
    late = output(step(5, 2))

    records.take(late, None)

    assert late.kv_transfer_params is None
    assert records.categories == {"code": DraftCount(5, 2)}


def test_a_request_that_is_gone_leaves_its_totals_and_nothing_else() -> None:
    records, collector = SpecRecords(), Collector()
    records.take(output(step(5, 2)), collector)
    steps, gone = records.of(collector).steps, ref(collector)

    del collector
    gc.collect()

    assert gone() is None
    assert len(records._records) == 0
    assert steps == [step(5, 2)]
    assert records.categories == {"code": DraftCount(5, 2)}


# --- steps under way ---


@dataclass
class Scheduled:
    """Stands for vLLM's `SchedulerOutput`."""

    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    total_num_scheduled_tokens: int = 0
    scheduled_spec_decode_tokens: dict[str, list[int]] = field(default_factory=dict)


def under_way(output: Scheduled) -> StepUnderWay:
    return StepUnderWay(output, 0.0)


def test_a_step_that_is_done_is_forgotten_with_those_before_it() -> None:
    outputs = [Scheduled() for _ in range(4)]
    steps = StepsUnderWay()
    for output in outputs:
        steps.began(under_way(output))
    for position, found in ((0, True), (2, True), (1, False), (3, True), (3, False)):
        done = steps.done(outputs[position])
        assert (done is not None) is found
        assert done is None or done.output is outputs[position]


def test_an_unknown_step_is_not_there_and_takes_no_other_with_it() -> None:
    known, steps = Scheduled(), StepsUnderWay()
    assert steps.done(Scheduled()) is None
    steps.began(under_way(known))
    assert steps.done(Scheduled()) is None
    assert steps.done(known) is not None


def test_equal_outputs_are_distinguished_by_identity() -> None:
    first, second = Scheduled(), Scheduled()
    steps = StepsUnderWay()
    steps.began(under_way(first))
    steps.began(under_way(second))
    assert steps.done(second) is not None
    assert steps.done(first) is None


def test_steps_that_are_never_done_do_not_pile_up() -> None:
    outputs, steps = [Scheduled() for _ in range(MOST_UNDER_WAY + 1)], StepsUnderWay()
    for output in outputs:
        steps.began(under_way(output))
    assert steps.done(outputs[0]) is None
    assert steps.done(outputs[1]) is not None


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class FixedMeter:
    """Bills 100 W busy and 10 W idle."""

    reason: str | None = None
    asked: list[tuple[float, float, float]] = field(default_factory=list)

    def bill(self, busy_s: float, idle_s: float, engine_busy_s: float) -> Energy:
        self.asked.append((busy_s, idle_s, engine_busy_s))
        return Energy(reason=self.reason) if self.reason else Energy(100 * busy_s, 10 * idle_s)


def took(busy_s: float, engine_busy_s: float) -> Output:
    totals = Totals(engine_busy_s)
    return Output([1], {RECORD_KEY: StepRecord(busy_s=busy_s), TOTALS_KEY: totals})


def test_an_engine_is_busy_from_its_last_report_on_as_long_as_it_has_requests() -> None:
    clock = Clock()
    records = SpecRecords(clock)
    clock.now_s += 50
    assert records.busy_now_s(working=False) == 0
    records.began_working()
    clock.now_s += 3
    assert records.busy_now_s(working=True) == 3  # a long step, of which no report has come
    records.take(took(2.5, 2.5), None)
    clock.now_s += 1
    assert records.busy_now_s(working=True) == 3.5
    assert records.busy_now_s(working=False) == 3.5, "it never falls"


def test_a_request_is_billed_the_energy_of_its_share_once() -> None:
    clock, meter = Clock(), FixedMeter()
    records, collector = SpecRecords(clock), Collector()
    records.meter = meter
    clock.now_s += 4
    records.take(took(1.0, 3.0), collector)
    record = records.of(collector)
    records.bill(record)
    records.bill(record)
    [asked] = meter.asked
    assert asked == pytest.approx((1.0, 1 / 3, 3.0))  # of 1 s idle time a third is its
    assert record.energy.busy_j == 100
    assert record.energy.idle_j == pytest.approx(10 / 3)
    # The answer's second sequence, in the same record.
    records.take(took(0.5, 3.5), collector)
    records.bill(record)
    assert record.energy.busy_j == 150


def test_a_request_of_an_engine_without_a_meter_has_no_joules() -> None:
    records, collector = SpecRecords(), Collector()
    records.take(took(1.0, 3.0), collector)
    records.bill(records.of(collector))
    assert records.of(collector).energy == Energy()


def test_a_request_that_could_not_be_measured_says_why() -> None:
    records, collector = SpecRecords(), Collector()
    records.meter = FixedMeter("no driver")
    records.take(took(1.0, 3.0), collector)
    records.bill(records.of(collector))
    assert records.of(collector).energy == Energy(reason="no driver")
