"""n-gram lookup on the GPU (`ngram_gpu`), asynchronous scheduling."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.v2.checks import PROMPTS, asks, check_answers, check_records
from tests.support.v2_on_cpu.engine import Ask, Batch, EngineSpec, Host, V2Engine


@pytest.fixture(scope="module")
def engine(host: Host, tiny_models: Path) -> Iterator[V2Engine]:
    with host.engine(EngineSpec(tiny_models, "ngram_gpu", asynchronous=True)) as running:
        yield running


@pytest.fixture(scope="module")
def mixed(engine: V2Engine) -> Batch:
    """Every kind of depth side by side."""
    return engine.run(asks(0, 2, 3, "auto"))


def test_the_engine_is_what_a_gpu_runs(engine: V2Engine) -> None:
    assert engine.info == {
        "runner": "vllm.v1.worker.cpu.model_runner",  # a subclass of vllm.v1.worker.gpu.model_runner.GPUModelRunner
        "speculator": "NgramGPUSpeculator",
        "scheduler": "DepthScheduler",
        "worker": "V2CpuWorker",
        "asynchronous": True,
        "texts": "on the device",
    }


def test_answers_are_the_targets_own_at_one_depth_for_all(engine: V2Engine) -> None:
    requests = asks(3, 3, max_tokens=10)
    batch = engine.run(requests)

    check_answers(requests, batch)
    check_records(batch)
    assert {drafted for drafted, _ in batch.verified(0)[:-2]} == {0, 3}


def test_answers_are_the_targets_own_at_mixed_depths(mixed: Batch) -> None:
    check_answers(asks(0, 2, 3, "auto"), mixed)


def test_records_say_what_the_runner_verified_and_accepted(mixed: Batch) -> None:
    check_records(mixed)
    assert sum(accepted for place in range(4) for _, accepted in mixed.verified(place)) > 0


def test_each_request_is_verified_at_its_own_depth(mixed: Batch) -> None:
    for place, k in enumerate((0, 2, 3)):
        first, *rest = mixed.verified(place)
        assert first == (0, 0)
        # The last step may have room for fewer.
        assert {drafted for drafted, _ in rest[:-2]} == {k}


def test_a_stop_string_inside_accepted_drafts_ends_the_answer_there(engine: V2Engine) -> None:
    [free] = engine.run([Ask(PROMPTS[2], k=3, max_tokens=24)]).replies
    at = next(place for place in range(4, 20) if free.text[place] not in free.text[:place])
    stop = free.text[at]
    requests = [Ask(PROMPTS[2], k, max_tokens=24, stop=(stop,)) for k in (0, 3)]

    batch = engine.run(requests)

    for reply in batch.replies:
        assert reply.finish_reason == "stop"
        assert reply.text == free.text[:at]
        assert reply.token_ids == free.token_ids[: len(reply.token_ids)]


def test_a_client_that_leaves_disturbs_nobody(engine: V2Engine) -> None:
    requests = [Ask(PROMPTS[0], 3, 24, abort_after=5), Ask(PROMPTS[1], 3, 16)]

    batch = engine.run(requests)

    assert batch.replies[0].finish_reason != "length"
    assert 5 <= len(batch.replies[0].token_ids) < 24
    check_answers(requests, batch)
    check_records(engine.run(asks(3, max_tokens=4)))


def test_structured_output_keeps_to_its_grammar_with_drafts_beside_free_requests(engine: V2Engine) -> None:
    pattern = "(ab|cd){4}"
    requests = [Ask(PROMPTS[0], k, 16, regex=pattern) for k in (0, 3)] + [Ask(PROMPTS[1], 3, 8)]

    batch = engine.run(requests)

    plain, drafted, free = batch.replies
    assert plain.text == drafted.text
    assert len(plain.text) == 8
    assert {plain.text[place : place + 2] for place in range(0, 8, 2)} <= {"ab", "cd"}
    check_answers(requests[2:], Batch([free], batch.steps, 0))
    for place, reply in enumerate(batch.replies):
        assert sum(record["tokens"] for record in reply.records) == len(reply.token_ids), place


def test_a_seeded_sampled_request_is_not_drafted_for_and_gives_one_text(engine: V2Engine) -> None:
    seeded = Ask(PROMPTS[0], 3, 8, temperature=0.8, seed=7)

    alone = engine.run([seeded])
    together = engine.run([seeded, *asks(3, max_tokens=8)])

    assert alone.replies[0].token_ids == together.replies[0].token_ids
    assert {drafted for drafted, _ in together.verified(0)} == {0}
    assert {record["reason"] for record in together.replies[0].records[1:]} == {"seeded"}
