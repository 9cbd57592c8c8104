"""A draft model: asynchronous scheduling, prompts read in pieces, and too small a KV cache for four requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.integration.v2.checks import PROMPTS, asks, check_answers, check_drafts, check_records, ids
from tests.support.v2_on_cpu.engine import Ask, Batch, EngineSpec, Host, V2Engine

PIECE = 24
"""Tokens of a step."""
BLOCK = 32
"""Tokens of a block of the KV cache."""
KV_BLOCKS = 6
"""One stays empty; each of four requests needs two in the end."""
MIXED = asks(0, 1, 3, "auto")


@pytest.fixture(scope="module")
def engine(host: Host, tiny_models: Path) -> Iterator[V2Engine]:
    spec = EngineSpec(
        tiny_models,
        "draft_model",
        "draft",
        asynchronous=True,
        max_num_batched_tokens=PIECE,
        max_model_len=128,
        kv_blocks=KV_BLOCKS,
    )
    with host.engine(spec) as running:
        yield running


def test_the_warm_up_of_a_gpu_worker_runs_before_anything_is_scheduled(engine: V2Engine) -> None:
    assert engine.warm_up()


@pytest.fixture(scope="module")
def mixed(engine: V2Engine) -> Batch:
    """Every kind of depth side by side."""
    return engine.run(MIXED)


def test_answers_are_the_targets_own_and_records_the_runners(mixed: Batch) -> None:
    check_answers(MIXED, mixed)
    check_records(mixed)


def test_prompts_are_read_in_pieces(mixed: Batch) -> None:
    assert max(len(ids(ask.prompt)) for ask in MIXED) > PIECE
    assert max(sum(step.scheduled.values()) for step in mixed.steps) <= PIECE


def test_it_drafts_as_many_tokens_as_the_deepest_request_takes_and_rests_at_0(engine: V2Engine) -> None:
    requests = [Ask("abc", depths=(3, 1, 0, 0, 0, 2, 0, 3), max_tokens=24)]

    batch = engine.run(requests)

    check_answers(requests, batch)
    by_k = {(step.k, len(step.draft_forwards)) for step in batch.steps[1:]}
    # The step with 2 drafts and one with 3 begin with a pass over what was missed.
    assert by_k <= {(0, 0), (1, 1), (2, 3), (3, 3), (3, 4)}
    assert {(0, 0), (1, 1), (2, 3), (3, 4)} <= by_k


def test_after_a_rest_its_drafts_are_what_it_says_of_the_whole_text(engine: V2Engine) -> None:
    depths = ((3, 1, 0, 0, 0, 0, 2, 3), (2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 3))
    requests = [Ask(prompt, depths=each, max_tokens=24) for prompt, each in zip(PROMPTS[1:], depths, strict=False)]

    batch = engine.run(requests)

    check_answers(requests, batch)
    assert sum(check_drafts(requests, batch)) > 15


def test_what_others_wrote_without_drafts_is_read_when_the_prefix_cache_gives_it(engine: V2Engine) -> None:
    first = Ask("Hello there, how are", depths=(0,), max_tokens=24)
    [reply] = engine.run([first]).replies
    requests = [Ask(first.prompt + reply.text, depths=(3,), max_tokens=20)]
    text = ids(requests[0].prompt)

    batch = engine.run(requests)

    assert text == ids(first.prompt) + reply.token_ids
    assert batch.steps[0].scheduled == {0: len(text) - BLOCK}  # the others were in the cache
    check_answers(requests, batch)
    assert check_drafts_once_caught_up(requests, batch) > 6


def test_what_it_missed_is_read_in_pieces_of_a_step(engine: V2Engine) -> None:
    rest = (0,) * 10
    requests = [Ask(prompt, depths=(*rest, 1), max_tokens=18) for prompt in ("abc", "Hello", "the end")]

    batch = engine.run(requests)

    passes = [step.draft_forwards[0] for step in batch.steps[1:] if len(step.draft_forwards) == 2]
    assert len(passes) > 1  # more than one step's tokens were missed
    assert max(passes) <= PIECE
    check_answers(requests, batch)
    assert check_drafts_once_caught_up(requests, batch) > 3


def check_drafts_once_caught_up(requests: Sequence[Ask], batch: Batch) -> int:
    """Check the drafts since the last pass over what was missed; return how many there are."""
    caught_up = max(place for place, step in enumerate(batch.steps) if len(step.draft_forwards) > step.k)
    late = Batch(batch.replies, batch.steps[caught_up:], 0)
    before = [
        sum(step.verified[ask][1] + 1 for step in batch.steps[:caught_up] if ask in step.verified)
        for ask in range(len(requests))
    ]
    return sum(check_drafts(requests, late, before=before))


def test_the_worker_tells_the_forward_pass_and_drafting_apart(engine: V2Engine) -> None:
    [batch] = [engine.run([Ask("abc", depths=(3, 0, 0, 0, 3, 3), max_tokens=16)])]

    before = None
    for step in batch.steps[:-2]:
        assert step.times is not None
        assert step.times["verify_s"] > 0
        if before is not None:
            # The drafting that a step's time begins with is that of the step before.
            assert step.times["depth"] == before.k
            # Where it read a prompt too, or what it had missed, its time would be of something else.
            pure = len(before.draft_forwards) == before.k and before is not batch.steps[0]
            assert (step.times["draft_s"] is not None) == pure
        before = step


def test_requests_that_were_preempted_go_on_as_if_they_had_not_been(engine: V2Engine) -> None:
    requests = [Ask(prompt, depths=depths, max_tokens=24) for prompt, depths in zip(PROMPTS, REST, strict=True)]

    batch = engine.run(requests)

    assert batch.preemptions > 0
    check_answers(requests, batch)
    check_records(batch)
    assert sum(check_drafts(requests, batch)) > 12


REST = ((3,), (2, 0, 0, 0, 0, 3), (0, 0, 0, 0, 3), (3, 0, 0, 0, 3))
"""Depths with rests."""
