"""Waits in the engine's queue and time with prompts, from the times of its outputs."""

from __future__ import annotations

from serve_app.engine.vllm.load import OutputLoad


def test_the_wait_is_from_queued_to_scheduled() -> None:
    load = OutputLoad()
    load.saw(100.0, 100.5, 101.0)
    load.saw(100.0, 101.5, 102.0)
    assert load.queue_wait_ms(102.0) == 1000.0


def test_the_time_with_prompts_is_from_scheduled_to_the_first_token() -> None:
    load = OutputLoad()
    load.saw(100.0, 100.5, 103.0)
    # 2.5 of the last 10 s.
    assert load.prompts(103.0) == 0.25
    assert load.prompts(114.0) == 0.0


def test_time_with_several_prompts_counts_once() -> None:
    load = OutputLoad()
    load.saw(100.0, 100.0, 102.0)
    load.saw(100.0, 101.0, 103.0)
    load.saw(100.0, 102.5, 103.0)
    assert load.prompts(103.0) == 0.3


def test_outputs_after_the_first_and_preemptions_do_not_count() -> None:
    load = OutputLoad()
    load.saw(None, None, 100.0)
    load.saw(None, 105.0, 106.0)
    assert (load.queue_wait_ms(106.0), load.prompts(106.0)) == (0.0, 0.0)


def test_an_engine_that_always_has_a_prompt_to_read_is_busy_with_prompts_all_the_time() -> None:
    load = OutputLoad()
    load.saw(100.0, 100.0, 125.0)
    assert load.prompts(125.0) == 1.0
