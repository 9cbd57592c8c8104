"""What the worker measures arrives where the scheduler is, through vLLM's own queue between processes."""

from __future__ import annotations

from threading import Thread

from serve_app.engine.vllm.step_times import TIMES_ATTRIBUTE, StepTimes


def test_times_on_an_output_pass_the_queue_between_worker_and_engine_core(vllm_installed: None) -> None:
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
    from vllm.v1.outputs import ModelRunnerOutput

    from serve_app.engine.vllm.worker.step_clock import ClockMark, Drafted, Marks, with_times

    began, sampled, ended = ClockMark(), ClockMark(), ClockMark()
    marks = Marks(began, sampled, Drafted(sampled, ended, 3, alone=True))
    output = ModelRunnerOutput(["a"], {"a": 0}, [[1, 2]])
    sender = MessageQueue(n_reader=1, n_local_reader=1)
    receiver = MessageQueue.create_from_handle(sender.export_handle(), 0)
    ready = Thread(target=sender.wait_until_ready)
    ready.start()
    receiver.wait_until_ready()
    ready.join()

    sender.enqueue(("SUCCESS", with_times(output, marks)))
    _, arrived = receiver.dequeue(timeout=10)

    times = getattr(arrived, TIMES_ATTRIBUTE)
    assert times == marks.times()
    assert times.depth == 3
    assert times.verify_s > 0
    assert arrived.sampled_token_ids == [[1, 2]]


def test_the_drafting_of_a_step_comes_with_the_next_ones_output(vllm_installed: None) -> None:
    import torch

    from serve_app.engine.vllm.worker.step_clock import StepClock

    clock = StepClock(torch.device("cpu"))

    def step(depth: int, *, alone: bool = True) -> StepTimes:
        clock.begin()
        clock.sampled()
        clock.drafted(depth, alone=alone)
        marks = clock.take()
        assert marks is not None
        return marks.times()

    assert (step(3).draft_s, step(0).depth) == (None, 3)
    assert step(2, alone=False).depth == 0
    mixed = step(1)
    assert (mixed.depth, mixed.draft_s) == (2, None)
    assert step(1).draft_s is not None


def test_the_time_between_two_steps_is_told_from_the_end_of_the_drafting_or_of_a_step_without(
    vllm_installed: None,
) -> None:
    import torch

    from serve_app.engine.vllm.worker.step_clock import StepClock

    class Tick:
        """A mark one second after the one before."""

        at_s = 0.0

        def __init__(self) -> None:
            Tick.at_s = self.at_s = Tick.at_s + 1

        def seconds_until(self, later: Tick) -> float:
            return later.at_s - self.at_s

    clock = StepClock(torch.device("cpu"))
    clock._mark = Tick  # type: ignore[assignment]

    def step(*, waits_s: int, drafts: bool) -> StepTimes:
        Tick.at_s += waits_s
        clock.begin()
        clock.sampled()
        if drafts:
            clock.drafted(3, alone=True)
        marks = clock.take()
        assert marks is not None
        return marks.times()

    assert step(waits_s=7, drafts=True).idle_s == 0
    assert step(waits_s=4, drafts=True) == StepTimes(verify_s=1, draft_s=1, depth=3, idle_s=5)
    assert step(waits_s=0, drafts=False) == StepTimes(verify_s=1, draft_s=1, depth=3, idle_s=1)
    assert step(waits_s=2, drafts=False) == StepTimes(verify_s=1, draft_s=None, depth=0, idle_s=3)
    assert step(waits_s=0, drafts=True).idle_s == 1
    for _ in range(2):
        clock.begin()  # a step of no tokens, of which vLLM takes no output
    assert step(waits_s=1, drafts=False) == StepTimes(verify_s=1, draft_s=1, depth=3, idle_s=2)


def test_a_step_that_ran_no_model_has_no_times(vllm_installed: None) -> None:
    import torch

    from serve_app.engine.vllm.worker.step_clock import StepClock

    clock = StepClock(torch.device("cpu"))
    clock.begin()

    assert clock.take() is None


def test_a_clock_that_fails_costs_the_times_and_not_the_output(vllm_installed: None) -> None:
    from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

    from serve_app.engine.vllm.worker.step_clock import Marks, TimedOutput

    class Broken:
        """A mark that was not reached."""

        def seconds_until(self, later: object) -> float:
            raise RuntimeError("device not ready")

    class Arrived(AsyncModelRunnerOutput):
        """An output that has arrived."""

        def get_output(self) -> ModelRunnerOutput:
            return ModelRunnerOutput(["a"], {"a": 0}, [[1, 2]])

    output = TimedOutput(Arrived(), Marks(Broken(), Broken(), None)).get_output()

    assert output.sampled_token_ids == [[1, 2]]
    assert not hasattr(output, TIMES_ATTRIBUTE)
