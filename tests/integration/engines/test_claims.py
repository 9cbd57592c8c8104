"""Keys beside one another on a real engine: whose request is in the next step, and whose prompt is in whose cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.engine.engines import Ask, Batch, EngineProcess, Reply, engine_process
from cluster.profiles.reading import load_profile
from serve_app.fairness.claims import ANYBODY, Claim
from serve_app.fairness.places import BATCH_PART, kept
from tests.support.e2e_app import MODEL

LARGE, SMALL = Claim("large", cache_salt="large"), Claim("small", cache_salt="small")
LONG = "Describe the harbour of an old town in the morning, with all its ships, people and smells. " * 8
SEATS = 8
BLOCK = 16
"""Tokens of a block of the cache at most: a prompt's last tokens fill none."""


@pytest.fixture(scope="module")
def engine(bundled_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """eco's entry without speculation, and with a quarter of its seats: `bench.fairness` has all."""
    tier = load_profile("local").tiers["eco"]
    entry = tier.chain[-1]
    entry = entry.model_copy(update={"engine_args": {**entry.engine_args, "max_num_seqs": SEATS}})
    log = tmp_path_factory.mktemp("claims") / "log"
    with engine_process(entry, tier, {MODEL: bundled_model}, log) as process:
        process.ask([Ask("Hello.", max_tokens=2)])
        yield process


def beside(engine: EngineProcess, claim: Claim) -> tuple[Batch, Reply]:
    """Ask for many long answers in the name of a claim, then for a short one of another key; return that one too."""
    crowd = [Ask(f"Tell a story of {number} ships.", max_tokens=16, claim=claim) for number in range(SEATS + 4)]
    batch = engine.ask([*crowd, Ask("Hello!", max_tokens=2, claim=SMALL, late=True)])
    return batch, batch.replies[-1]


def steps_until_first(batch: Batch, small: Reply) -> int:
    """Return how many engine steps ended from when the engine had taken the small request to its first token, with
    the step that gave it."""
    taken_s, end_s = small.began_s + small.taken_s, small.began_s + small.ttft_s
    return max(
        sum(taken_s < other.began_s + at_s <= end_s for at_s, _ in other.arrivals) for other in batch.replies[:-1]
    )


def test_a_request_begins_two_steps_after_it_came_beside_a_key_with_more_requests_than_seats(
    engine: EngineProcess,
) -> None:
    batch, small = beside(engine, LARGE)
    assert steps_until_first(batch, small) <= 3  # the one under way when it came, and two
    at_once = sum(other.arrivals[0][0] < small.began_s + small.ttft_s for other in batch.replies[:-1])
    assert at_once <= SEATS - kept(SEATS)


def test_the_same_beside_batch_requests_of_its_own_key(engine: EngineProcess) -> None:
    batch, small = beside(engine, SMALL._replace(batch=True))
    assert steps_until_first(batch, small) <= 3
    at_once = sum(other.arrivals[0][0] < small.began_s + small.ttft_s for other in batch.replies[:-1])
    assert at_once <= SEATS - SEATS // BATCH_PART


def test_a_request_that_gave_its_seat_to_another_key_ends_with_the_same_answer(engine: EngineProcess) -> None:
    """One seat is kept, and three keys with none want one each."""
    crowd = [Ask(f"Count from {number} to one hundred.", max_tokens=24, claim=LARGE) for number in range(SEATS)]
    alone = engine.ask(crowd).token_ids
    few = [Ask("Hello!", max_tokens=8, claim=Claim(f"key {number}"), late=True) for number in range(3)]
    batch = engine.ask([*crowd, *few])
    assert batch.preemptions > 0
    assert batch.token_ids[: len(crowd)] == alone


def cached(engine: EngineProcess, prompt: str, claim: Claim) -> int:
    """Return how many tokens of a prompt the engine has in its cache for this claim."""
    return engine.ask([Ask(prompt, max_tokens=1, claim=claim)]).cached_tokens


def test_a_key_finds_its_own_prompt_in_the_cache_and_nobody_elses(engine: EngineProcess) -> None:
    assert cached(engine, LONG, LARGE) == 0
    own = cached(engine, LONG, LARGE)
    assert own > 100
    assert cached(engine, LONG, SMALL) < BLOCK
    assert cached(engine, LONG, ANYBODY) < BLOCK
    assert cached(engine, LONG, ANYBODY) == own  # those without a key share one


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}], "max_tokens": 1}),
        ("/v1/responses", {"input": LONG, "max_output_tokens": 1, "store": False}),
        ("/v1/messages", {"messages": [{"role": "user", "content": LONG}], "max_tokens": 1}),
    ],
)
def test_the_routes_of_other_apis_have_their_keys_cache_too(
    engine: EngineProcess, path: str, body: dict[str, Any]
) -> None:
    claim = Claim(path, cache_salt=path)
    [answer] = engine.call([(path, {"model": "eco", "temperature": 0, **body})], claim=claim)
    assert answer.status == 200, answer.body
    assert cached(engine, LONG, claim) > 100
    assert cached(engine, LONG, Claim("other", cache_salt=f"other than {path}")) < BLOCK


def test_a_clients_own_salt_parts_its_keys_cache_and_reaches_no_other_keys(engine: EngineProcess) -> None:
    body = {"model": "eco", "messages": [{"role": "user", "content": LONG}], "max_tokens": 1, "cache_salt": "mine"}
    [answer] = engine.call([("/v1/chat/completions", body)], claim=Claim("salted", cache_salt="salted"))
    assert answer.status == 200, answer.body
    assert cached(engine, LONG, Claim("salted", cache_salt="salted")) < BLOCK
    [again] = engine.call([("/v1/chat/completions", body)], claim=Claim("thief", cache_salt="thief"))
    assert again.status == 200
    assert cached(engine, LONG, Claim(None, cache_salt="mine")) < BLOCK
