"""A draft model and n-gram lookup in one batch, as each request chooses; synchronous scheduling."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.v2.checks import PROMPTS, check_answers, check_drafts, check_records, ids, proposals
from tests.support.v2_on_cpu.engine import Ask, Batch, EngineSpec, Host, V2Engine


@pytest.fixture(scope="module")
def engine(host: Host, tiny_models: Path) -> Iterator[V2Engine]:
    with host.engine(EngineSpec(tiny_models, "draft_model", "draft", composite=True)) as running:
        yield running


def ask(place: int, drafts: str, k: int, max_tokens: int = 16) -> Ask:
    return Ask(PROMPTS[place], k, max_tokens, arguments={"speculation_drafts": drafts})


MIXED = [ask(0, "ngram", 3), ask(1, "own", 2), ask(2, "ngram", 2), ask(3, "own", 1)]


@pytest.fixture(scope="module")
def mixed(engine: V2Engine) -> Batch:
    return engine.run(MIXED)


def test_answers_are_the_targets_own_and_records_the_runners(mixed: Batch) -> None:
    check_answers(MIXED, mixed)
    check_records(mixed)


def test_the_record_says_who_drafted(mixed: Batch) -> None:
    for request, reply in zip(MIXED, mixed.replies, strict=True):
        made = {record["drafts"] for record in reply.records if record["drafted"]}
        assert made == {request.arguments["speculation_drafts"]}


def test_each_request_gets_the_drafts_that_it_chose(mixed: Batch) -> None:
    assert sum(check_drafts(MIXED, mixed, places=(1, 3))) > 20
    count = 0
    for place in (0, 2):
        for done, drafts in proposals(MIXED, mixed, place):
            assert drafts == looked_up(ids(MIXED[place].prompt) + mixed.replies[place].token_ids[:done], len(drafts))
            count += len(drafts)
    assert count > 20


def looked_up(text: list[int], k: int) -> list[int]:
    """What followed the last 4, 3 or 2 tokens where they stood first; the last token where nothing did."""
    for n in (4, 3, 2):
        for start in range(len(text) - n):
            if text[start : start + n] == text[-n:]:
                found = text[start + n : start + n + k]
                return found + text[-1:] * (k - len(found))
    return text[-1:] * k


def test_the_draft_model_runs_as_deep_as_those_who_want_it(mixed: Batch) -> None:
    both = [step for step in mixed.steps[1:-1] if {1, 3} <= step.scheduled.keys() and step.k]

    assert both
    assert {len(step.draft_forwards) for step in both[:-1]} == {2}


def test_where_nobody_wants_it_it_rests_and_knows_the_text_when_it_comes_back(engine: V2Engine) -> None:
    lookups = [ask(0, "ngram", 3, 12), ask(1, "ngram", 3, 12)]
    batch = engine.run(lookups)
    check_answers(lookups, batch)
    assert {step.draft_forwards for step in batch.steps} == {()}

    # The first request ends after some steps; the second one's drafts are then the only ones.
    later = [ask(0, "ngram", 3, 6), Ask(PROMPTS[1], depths=(0, 0, 0, 0, 0, 0, 3), max_tokens=24)]
    batch = engine.run(later)
    check_answers(later, batch)
    assert sum(check_drafts(later, batch, places=(1,))) > 8


def test_the_texts_that_are_looked_up_are_on_the_device(engine: V2Engine) -> None:
    assert engine.info["texts"] == "on the device"
