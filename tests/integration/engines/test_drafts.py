"""Two ways to draft in one real engine: as each request chooses, and switched for all others under way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import pytest

from bench.engine.engines import CLIENT_ID, Ask, Batch, EngineProcess, Reply, engine_process
from cluster.profiles.reading import load_profile
from router.registry import Drafts, DraftsChoice
from serve_app.speculation.tau import MARGIN
from tests.support.e2e_app import EARLY_EXIT, MODEL

COPY: Final = (
    'Repeat this JSON exactly: {"name": "Anna", "age": 31, "city": "Oslo", "tags": ["a", "b", "c"], "name2": "Anna", '
    '"age2": 31, "city2": "Oslo"}'
)
STORY: Final = "Tell me a short story about a lighthouse."
LENGTHS: Final = {COPY: 40, STORY: 24}
"""Few tokens, as each engine step is a tenth of a second of CPU time, and three times that on a busy machine."""
CHOICES: Final[tuple[DraftsChoice | None, ...]] = ("own", "ngram", "auto", None)
AUTO: Final = "k auto"
"""Beside the choices with k 3: depth and drafts both `auto`."""


def asks(k: int | Literal["auto"], drafts: DraftsChoice | None = None) -> list[Ask]:
    return [Ask(prompt, k, max_tokens=tokens, drafts=drafts) for prompt, tokens in LENGTHS.items()]


@pytest.fixture(scope="module")
def engine(
    early_exit_model: Path, bundled_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineProcess]:
    """The performance tier of the local profile."""
    profile = load_profile("local")
    tier, entry = profile.tiers["performance"], profile.entry("performance", None)
    assert entry.speculation is not None
    assert entry.speculation.floor is not None
    models = {MODEL: bundled_model, EARLY_EXIT: early_exit_model}
    with engine_process(entry, tier, models, tmp_path_factory.mktemp("engine") / "log") as process:
        yield process


@pytest.fixture(scope="module")
def plain(engine: EngineProcess) -> Batch:
    """Without drafts."""
    return engine.ask(asks(0))


@pytest.fixture(scope="module")
def own(engine: EngineProcess, plain: Batch) -> Batch:
    """With drafts of the draft model."""
    return engine.ask(asks(3))


@pytest.fixture(scope="module")
def mixed(engine: EngineProcess, own: Batch) -> Batch:
    """Every choice side by side in one batch."""
    return engine.ask([ask for drafts in CHOICES for ask in asks(3, drafts)] + asks("auto", "auto"))


@pytest.fixture(scope="module")
def chosen(mixed: Batch) -> dict[str | None, list[Reply]]:
    """The replies of `mixed`, one for each prompt, by what was requested."""
    each = iter(mixed.replies)
    return {name: [next(each) for _ in LENGTHS] for name in (*CHOICES, AUTO)}


@pytest.fixture(scope="module")
def floored(engine: EngineProcess, mixed: Batch) -> Batch:
    """`tau: auto`, where the draft model does not pay (a story) and where the lookup does (a copy)."""
    return engine.ask(
        [
            Ask(STORY, 3, "auto", LENGTHS[STORY], drafts="own"),
            Ask(COPY, 3, "auto", LENGTHS[COPY], drafts="ngram"),
        ]
    )


@pytest.fixture(scope="module")
def switching(engine: EngineProcess, floored: Batch) -> Batch:
    """The order comes while the requests are under way: those that did not choose, then those that chose own drafts."""
    return engine.ask([*asks(3), *asks(3, "own")], order="ngram")


@pytest.fixture(scope="module")
def switched(engine: EngineProcess, switching: Batch) -> Batch:
    return engine.ask(asks(3))


@pytest.fixture(scope="module")
def switching_back(engine: EngineProcess, switched: Batch) -> Batch:
    return engine.ask(asks(3), order="own")


def drafters(reply: Reply) -> list[str]:
    """Who made the drafts of each verification, without repetitions in a row."""
    made = [step.drafts for step in reply.steps if step.drafted]
    return [drafts for place, drafts in enumerate(made) if place == 0 or made[place - 1] != drafts]


def acceptance(reply: Reply) -> float:
    return reply.accepted_tokens / reply.draft_tokens


def test_answers_are_the_same_with_either_drafter_and_across_a_switch(
    plain: Batch, own: Batch, switching: Batch, switched: Batch, switching_back: Batch
) -> None:
    for batch in (own, switched, switching_back):
        assert batch.token_ids == plain.token_ids
    assert switching.token_ids == 2 * plain.token_ids


def test_in_one_batch_each_request_is_drafted_for_as_it_chose_and_answers_are_the_same(
    plain: Batch, mixed: Batch, chosen: dict[str | None, list[Reply]]
) -> None:
    assert mixed.token_ids == (len(CHOICES) + 1) * plain.token_ids
    for drafts in ("own", None):
        assert [drafters(reply) for reply in chosen[drafts]] == [["own"]] * len(LENGTHS)
    assert [drafters(reply) for reply in chosen["ngram"]] == [["ngram"]] * len(LENGTHS)
    for name in ("auto", AUTO):
        assert all(set(drafters(reply)) <= {"own", "ngram"} for reply in chosen[name])
    for drafts in CHOICES:
        assert all(step.drafted <= 3 for reply in chosen[drafts] for step in reply.steps)
        assert all(reply.draft_tokens > 0 for reply in chosen[drafts])
    # What copied text needs is looked up, also while the draft model drafts for the others of the batch.
    assert acceptance(chosen["own"][0]) < 0.3 < 0.7 < acceptance(chosen["ngram"][0])


def test_the_record_of_a_mixed_batch_is_exact_by_request_and_by_who_drafted(mixed: Batch) -> None:
    for reply in mixed.replies:
        assert reply.verifications == reply.core_steps
        totals: dict[Drafts, tuple[int, int]] = {}
        for step in reply.steps:
            if step.drafted:
                drafted, accepted = totals.get(step.drafts, (0, 0))
                totals[step.drafts] = (drafted + step.drafted, accepted + step.accepted)
        assert reply.spec_drafts == totals


def test_a_client_cannot_order_by_the_id_of_a_request(own: Batch) -> None:
    assert CLIENT_ID.endswith("ngram")
    assert [drafters(reply) for reply in own.replies] == [["own"]] * len(LENGTHS)


def test_running_requests_switch_to_ngram_drafts_and_back_with_each_order(
    switching: Batch, switching_back: Batch
) -> None:
    assert [drafters(reply) for reply in switching.replies[:2]] == [["own", "ngram"]] * len(LENGTHS)
    assert [drafters(reply) for reply in switching_back.replies] == [["ngram", "own"]] * len(LENGTHS)


def test_tau_auto_stops_drafts_where_they_do_not_pay_and_nowhere_else(plain: Batch, floored: Batch) -> None:
    story, copy = floored.replies
    assert [copy.token_ids, story.token_ids] == plain.token_ids
    assert story.spec_tau is not None
    # On an overloaded machine drafts seem cheaper than they are, and the learned tau may come near the acceptance.
    assert story.stopped_by_tau or story.spec_tau < acceptance(story) + MARGIN
    stopped = [place for place, step in enumerate(story.steps) if step.reason == "tau_stopped"]
    assert all(step.drafted == 3 for step in story.steps[1 : stopped[0] if stopped else None])
    assert all(story.steps[place].drafted == 0 for place in stopped)
    assert not copy.stopped_by_tau
    assert copy.spec_tau is not None
    assert copy.spec_tau < acceptance(copy)
    for reply in floored.replies:
        assert reply.verifications == reply.core_steps


def test_a_request_that_chose_keeps_its_choice_across_an_order(switching: Batch) -> None:
    assert [drafters(reply) for reply in switching.replies[2:]] == [["own"]] * len(LENGTHS)


def test_lookup_predicts_copied_text_and_the_weak_draft_model_does_not(own: Batch, switched: Batch) -> None:
    assert [drafters(reply) for reply in switched.replies] == [["ngram"]] * len(LENGTHS)
    assert acceptance(own.replies[0]) < 0.3 < 0.7 < acceptance(switched.replies[0])


def test_only_own_drafts_are_counted_as_such(
    own: Batch, mixed: Batch, floored: Batch, switching: Batch, switched: Batch, switching_back: Batch
) -> None:
    def by_own(batch: Batch) -> tuple[int, int]:
        steps = [step for reply in batch.replies for step in reply.steps if step.drafts == "own"]
        return sum(step.drafted for step in steps), sum(step.accepted for step in steps)

    assert by_own(switched) == (0, 0)
    drafted = accepted = 0
    for batch in (own, mixed, floored, switching, switched, switching_back):
        drafted, accepted = drafted + by_own(batch)[0], accepted + by_own(batch)[1]
        assert batch.own_drafts == (drafted, accepted)


def test_our_record_equals_the_engine_cores_with_either_drafter(switching: Batch, switching_back: Batch) -> None:
    for reply in (*switching.replies, *switching_back.replies):
        assert reply.verifications == reply.core_steps
