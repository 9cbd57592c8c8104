"""Steps are done in the order in which they were scheduled; whatever else happens is survived."""

from __future__ import annotations

from serve_app.engine.vllm.steps_under_way import MOST_UNDER_WAY, StepsUnderWay, StepUnderWay


def step(output: object) -> StepUnderWay:
    return StepUnderWay(output, 0.0, {}, "own")


def test_a_step_that_is_done_is_forgotten_with_those_before_it() -> None:
    outputs = [object() for _ in range(4)]
    steps = StepsUnderWay()
    for output in outputs:
        steps.began(step(output))
    for position, found in ((0, True), (2, True), (1, False), (3, True), (3, False)):
        done = steps.done(outputs[position])
        assert (done is not None) is found
        assert done is None or done.output is outputs[position]


def test_an_unknown_step_is_not_there_and_takes_no_other_with_it() -> None:
    known, steps = object(), StepsUnderWay()
    assert steps.done(object()) is None
    steps.began(step(known))
    assert steps.done(object()) is None
    assert steps.done(known) is not None


def test_outputs_are_told_apart_by_identity_also_where_they_are_equal() -> None:
    first, second = [1], [1]
    steps = StepsUnderWay()
    steps.began(step(first))
    steps.began(step(second))
    assert steps.done(second) is not None
    assert steps.done(first) is None


def test_steps_that_are_never_done_do_not_pile_up() -> None:
    outputs, steps = [object() for _ in range(MOST_UNDER_WAY + 1)], StepsUnderWay()
    for output in outputs:
        steps.began(step(output))
    assert steps.done(outputs[0]) is None
    assert steps.done(outputs[1]) is not None
