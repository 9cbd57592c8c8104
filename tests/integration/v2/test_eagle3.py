"""An EAGLE-3 head with random weights, synchronous scheduling."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.v2.checks import asks, check_answers, check_records
from tests.support.v2_on_cpu.engine import Ask, Batch, EngineSpec, Host, V2Engine


@pytest.fixture(scope="module")
def engine(host: Host, tiny_models: Path) -> Iterator[V2Engine]:
    with host.engine(EngineSpec(tiny_models, "eagle3", "eagle3")) as running:
        yield running


MIXED = asks(0, 2, 3, "auto")


@pytest.fixture(scope="module")
def mixed(engine: V2Engine) -> Batch:
    """Every kind of depth side by side."""
    return engine.run(MIXED)


def test_answers_are_the_targets_own_and_records_the_runners(engine: V2Engine, mixed: Batch) -> None:
    assert engine.info["speculator"] == "EagleSpeculator"
    check_answers(MIXED, mixed)
    check_records(mixed)


def test_a_synchronous_engine_verifies_what_was_decided_for_each_request(mixed: Batch) -> None:
    for place, k in enumerate((0, 2, 3)):
        assert {drafted for drafted, _ in mixed.verified(place)[1:-2]} == {k}


def test_the_head_runs_once_for_each_draft_and_once_where_nobody_wants_one_now(engine: V2Engine) -> None:
    requests = [Ask("abc", depths=(3, 1, 0, 0, 2, 3), max_tokens=12)]

    batch = engine.run(requests)

    check_answers(requests, batch)
    assert {(step.k, len(step.draft_forwards)) for step in batch.steps} == {(0, 1), (1, 1), (2, 2), (3, 3)}


def test_where_nobody_may_ever_draft_the_head_reads_the_prompt_and_no_more(engine: V2Engine) -> None:
    requests = asks(0, 0, max_tokens=6)

    batch = engine.run(requests)

    check_answers(requests, batch)
    assert [len(step.draft_forwards) for step in batch.steps] == [1] + [0] * (len(batch.steps) - 1)
