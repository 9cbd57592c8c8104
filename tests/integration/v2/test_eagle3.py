"""An EAGLE-3 head with random weights, synchronous scheduling."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.v2.checks import asks, check_answers, check_records
from tests.support.v2_on_cpu.engine import Ask, EngineSpec, Host, V2Engine


@pytest.fixture(scope="module")
def engine(host: Host, tiny_models: Path) -> Iterator[V2Engine]:
    with host.engine(EngineSpec(tiny_models, "eagle3", "eagle3")) as running:
        yield running


@pytest.mark.parametrize("ks", [(0, 0, 0, 0), (1, 1, 1, 1), (0, 2, 3, "auto")], ids=str)
def test_answers_are_the_targets_own_and_records_the_runners(engine: V2Engine, ks: tuple[int | str, ...]) -> None:
    requests = asks(*ks)

    batch = engine.run(requests)

    assert engine.info["speculator"] == "EagleSpeculator"
    check_answers(requests, batch)
    check_records(batch)


def test_the_head_runs_once_for_each_draft_and_once_where_nobody_wants_one(engine: V2Engine) -> None:
    batch = engine.run([Ask("abc", depths=(3, 1, 0, 0, 2, 3), max_tokens=12)])

    assert {(step.k, len(step.draft_forwards)) for step in batch.steps} == {(0, 1), (1, 1), (2, 2), (3, 3)}


def test_a_synchronous_engine_verifies_what_was_decided_for_each_request(engine: V2Engine) -> None:
    batch = engine.run(asks(1, 3))

    for place, k in enumerate((1, 3)):
        assert {drafted for drafted, _ in batch.verified(place)[1:-2]} == {k}
