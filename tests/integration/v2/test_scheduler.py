"""Our scheduler where the next step is scheduled before the output of the one before has come."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from serve_app.engine.vllm.step_record import DRAFTS_ATTRIBUTE
from serve_app.engine.vllm.step_times import StepTimes
from tests.support.scheduler_driver import Driver, drafted, scheduler_config

K_MAX: Final = 3


@pytest.fixture(scope="module")
def config(tiny_models: Path) -> Any:
    return scheduler_config(tiny_models, K_MAX)


def test_a_depth_decided_in_a_step_holds_for_the_next_one_though_no_output_has_come(config: Any) -> None:
    driver = Driver(config)
    driver.add("a", 2, 3, 0, 1)

    first = driver.schedule()
    second = driver.schedule()
    driver.update(first)
    third = driver.schedule()
    driver.update(second, {"a": [7]})
    fourth = driver.schedule()
    driver.update(third, {"a": [7, 7, 7]})
    driver.update(fourth)

    assert [drafted(step) for step in (first, second, third, fourth)] == [{"a": 0}, {"a": 2}, {"a": 3}, {"a": 0}]
    assert [step.num_spec_tokens_to_schedule for step in (first, second, third, fourth)] == [2, 3, 0, 1]
    assert driver.counts("a") == [(0, 0), (2, 1), (3, 3), (0, 0)]
    assert driver.tokens["a"] == [9, 7, 9, 7, 7, 7, 9, 9]


def test_requests_of_one_step_have_their_own_depths_and_the_deepest_is_drafted(config: Any) -> None:
    driver = Driver(config)
    for name, k in (("off", 0), ("one", 1), ("three", 3)):
        driver.add(name, k)

    first, second = driver.schedule(), driver.schedule()

    assert first.num_spec_tokens_to_schedule == 3
    assert drafted(second) == {"off": 0, "one": 1, "three": 3}
    assert second.num_scheduled_tokens == {"off": 1, "one": 2, "three": 4}


def test_without_drafts_there_are_none_in_any_step(config: Any) -> None:
    driver = Driver(config)
    driver.add("a", 0)
    steps = [driver.schedule(), driver.schedule()]
    for _ in range(4):
        driver.update(steps.pop(0))
        steps.append(driver.schedule())

    assert all(drafted(step) == {"a": 0} and step.num_spec_tokens_to_schedule == 0 for step in steps)
    assert driver.counts("a") == [(0, 0)] * 4


def test_a_prompt_in_pieces_has_no_drafts_before_its_end(config: Any) -> None:
    driver = Driver(config)
    driver.add("a", 3, prompt=100)

    first, second, third = driver.schedule(), driver.schedule(), driver.schedule()
    for step in (first, second):
        driver.update(step)
    driver.update(third, {"a": [7, 7]})

    # vLLM keeps a token of each step free for a draft model.
    assert [step.num_scheduled_tokens["a"] for step in (first, second, third)] == [63, 37, 4]
    assert [step.num_spec_tokens_to_schedule for step in (first, second)] == [0, 3]
    assert driver.counts("a") == [(0, 0), (3, 2)]
    assert [result.prefill for result in driver.observed] == [True, True, False]


def test_a_stop_inside_accepted_drafts_cuts_the_answer_but_not_the_record(config: Any) -> None:
    driver = Driver(config)
    driver.add("a", 3, stops=[5])
    first, second, third = driver.schedule(), driver.schedule(), driver.schedule()
    driver.update(first)

    driver.update(second, {"a": [7, 5, 7]})
    driver.update(third, {"a": [7]})  # was under way when the request ended

    assert driver.tokens["a"] == [9, 7, 5]
    assert driver.counts("a") == [(0, 0), (3, 3)]
    assert "a" not in driver.scheduler.requests


def test_an_abort_with_a_step_under_way_leaves_no_trace_and_the_others_alone(config: Any) -> None:
    from vllm.v1.request import RequestStatus

    driver = Driver(config)
    driver.add("gone", 3)
    driver.add("stays", 2)
    first, second = driver.schedule(), driver.schedule()
    driver.update(first)

    driver.scheduler.finish_requests("gone", RequestStatus.FINISHED_ABORTED)
    third = driver.schedule()
    driver.update(second, {"gone": [7], "stays": [7]})
    driver.update(third, {"stays": [7, 7]})

    assert set(third.num_scheduled_tokens) == {"stays"}
    assert driver.counts("gone") == [(0, 0)]
    assert driver.counts("stays") == [(0, 0), (2, 1), (2, 2)]


def test_a_preempted_request_starts_again_and_its_record_goes_on(config: Any) -> None:
    driver = Driver(config, blocks=7)  # one stays empty; a request needs five
    for name in ("a", "b"):
        driver.add(name, 3, prompt=24, max_tokens=40)
    steps = [driver.schedule(), driver.schedule()]
    preempted = 0
    prefills: list[bool] = []
    while steps:
        step = steps.pop(0)
        preempted += len(step.preempted_req_ids or ())
        prefills.append(any(count > K_MAX + 1 for count in step.num_scheduled_tokens.values()))
        driver.update(step, {key: [7] * (count // 2) for key, count in drafted(step).items()})
        following = driver.schedule()
        if following.num_scheduled_tokens:
            steps.append(following)

    assert preempted > 0
    assert sum(prefills) > 1
    assert [result.prefill for result in driver.observed] == prefills
    assert {name: len(tokens) for name, tokens in driver.tokens.items()} == {"a": 40, "b": 40}
    for name in ("a", "b"):
        counts = driver.counts(name)
        assert {count for count in counts if count[0]} <= {(3, 1), (2, 1), (1, 0)}
        # Every token but the last step's cut ones is in the record.
        assert 0 <= sum(accepted + 1 for _, accepted in counts) - 40 <= K_MAX
    assert not driver.scheduler.requests


def test_drafts_that_a_grammar_forbids_are_not_counted(config: Any) -> None:
    from vllm.v1.outputs import DraftTokenIds

    driver = Driver(config)
    driver.add("a", 3)
    first, second = driver.schedule(), driver.schedule()
    driver.update(first)
    driver.scheduler.structured_output_manager.validate_tokens = lambda request, tokens: tokens[:2]

    driver.scheduler.update_draft_token_ids_in_output(DraftTokenIds(["a"], [[7, 7, 8]]), second)
    driver.update(second, {"a": [7]})

    assert second.scheduled_spec_decode_tokens["a"] == [7, 7, -1]
    assert driver.counts("a") == [(0, 0), (2, 1)]


@pytest.mark.parametrize(("v2", "depths"), [(True, [0, 3, 1, 0]), (False, [3, 1, 0, 2])])
def test_a_steps_time_is_labelled_with_the_drafting_that_is_in_it(config: Any, v2: bool, depths: list[int]) -> None:
    """V2 hands tokens over before it drafts for the next step, V1 afterwards."""
    driver = Driver(config, v2=v2)
    driver.add("a", 3, 1, 0, 2)
    steps = [driver.schedule() for _ in range(4)]
    for step in steps:
        driver.update(step)

    assert [result.depth for result in driver.observed] == depths


def test_measured_times_come_before_the_interval(config: Any) -> None:
    driver = Driver(config)
    driver.add("a", 3, 1)
    step = driver.schedule()

    driver.update(step, times=StepTimes(verify_s=0.004, draft_s=0.002, depth=2))

    [result] = driver.observed
    assert (result.verify_s, result.draft_s, result.depth) == (0.004, 0.002, 2)
    assert result.step_s is not None


def test_time_between_steps_counts_where_requests_waited_and_not_where_there_were_none(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr("serve_app.engine.vllm.scheduler.time.monotonic", lambda: now_s)
    driver = Driver(config)
    times = StepTimes(verify_s=0.004, draft_s=0.002, depth=2, idle_s=0.5)
    for _ in range(2):
        now_s += 10
        driver.add("a", 1, max_tokens=2)
        for _ in range(2):
            now_s += 0.5
            step = driver.schedule()
            now_s += 1
            driver.update(step, times=times)

    assert [result.step_s for result in driver.observed] == [1, 1.5] * 2
    assert [result.verify_s for result in driver.observed] == [0.004, 0.504] * 2


def test_the_worker_is_told_who_never_drafts_though_there_is_one_way_to_draft(config: Any) -> None:
    driver = Driver(config)
    driver.add("asked", 0, arguments={"speculation_k": 0})
    driver.add("seeded", 0, seed=7)
    driver.add("auto", 0)

    steps = driver.schedule(), driver.schedule()

    assert [getattr(step, DRAFTS_ATTRIBUTE) for step in steps] == [{"asked", "seeded"}] * 2
